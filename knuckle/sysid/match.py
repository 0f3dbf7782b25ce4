"""Columns of a log matched to times, joints, actuators, links and frames of a model by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid import units
from knuckle.sysid.entries import (
    CHANNELS,
    POINT_PREFIX,
    POSE,
    POSE_PREFIX,
    body_names,
    dimensions,
    names_of,
    single_joints,
)
from knuckle.sysid.raw import Column
from knuckle.sysid.words import (
    FILLERS,
    KINDS,
    POSE_WORDS,
    POSITION,
    ROTATION_WORDS,
    channel_of,
    is_episode,
    is_time,
    title_and_unit,
    tokens,
)

SPECIAL = ("time", "episode")
CURRENT = "current"  # of motors [A]: becomes "tau" by drive gains
Words = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where a column belongs: a channel and an entry of it; `entry` None: all entries, in order."""

    channel: str
    entry: str | None
    unit: str | None = None
    guessed: str = ""  # how, if not by the full name
    scale: tuple[float, ...] = (1.0,)  # to the channel's quantity, one or one per entry: N m/A of currents


@dataclass(frozen=True)
class Spelling:
    """One way to write an entry of a channel."""

    words: Words
    channel: str
    entry: str
    alone: bool  # whether the name without a word for the quantity means this channel
    motor: bool  # a control that is a torque or force
    how: str  # empty: the full name


class Lexicon:
    """All names that columns may have for a model."""

    def __init__(self, model: Model):
        self.model = model
        self.own = set(tokens(model.name))
        self.names = {channel: names_of(model, channel) for channel in CHANNELS}
        self.names[CURRENT] = self.names["tau"]
        self.bodies = [(tokens(body), body) for body in body_names(model)]
        self.bodies = sorted((b for b in self.bodies if b[0]), key=lambda b: -len(b[0]))
        self.spellings = [s for channel in self.names for s in self._spellings(channel) if s.words]

    def _spellings(self, channel: str) -> list[Spelling]:
        """The words of an entry; also without the first words, if all entries share them; a control by its joint."""
        shared = _shared(self.names[channel])
        bias = np.asarray(self.model.actuators.bias)[:, 1:]
        found = []
        for i, entry in enumerate(self.names[channel]):
            words = tokens(entry)
            alone = channel == next(c for c in ("q", "qd", "control") if entry in self.names[c])
            motor = channel == "control" and not bias[i].any()
            found.append(Spelling(words, channel, entry, alone, motor, ""))
            if 0 < shared < len(words):
                how = "without the prefix that all share"
                found.append(Spelling(words[shared:], channel, entry, alone, motor, how))
            joint = _joint_of(i, self.model) if channel == "control" else None
            if joint is not None and tokens(joint) != words:
                found.append(
                    Spelling(tokens(joint), channel, entry, False, motor, f"the only actuator of joint {joint}")
                )
        return found


def _shared(names: Sequence[str]) -> int:
    """How many first words all names share."""
    lists = [tokens(name) for name in names]
    if len(lists) < 2:
        return 0
    count = 0
    while all(len(words) > count + 1 and words[count] == lists[0][count] for words in lists):
        count += 1
    return count - 1 if count and lists[0][count - 1] in FILLERS else count


def _joint_of(actuator: int, model: Model) -> str | None:
    """The joint that only this actuator moves, if it moves one degree of freedom."""
    acts = model.actuators
    dofs = [dof for a, dof in zip(acts.entry_actuator, acts.entry_dof, strict=True) if a == actuator]
    if len(dofs) != 1 or acts.entry_dof.count(dofs[0]) != 1:
        return None
    return names_of(model, "qd")[dofs[0]]


def place(column: Column, lexicon: Lexicon) -> Place | None:
    """The place that a column's own name gives it."""
    title, unit = title_and_unit(column.title)
    if column.text:
        return None
    words = tokens(title)
    if is_time(column.title):
        return Place("time", None, unit or _time_unit(words))
    if is_episode(title):
        return Place("episode", None)
    found = _place(words, column, lexicon)
    if found is None and unit is None:
        for suffix in units.SUFFIXES:
            if len(words) > len(suffix) and words[-len(suffix) :] == suffix:
                found, unit = _place(words[: -len(suffix)], column, lexicon), "/".join(w for w in suffix if w != "per")
                if found is not None:
                    break
    if found is None:
        return None
    found = Place(found.channel, found.entry, unit, found.guessed)
    return found if unit is None or any(word in KINDS for word in words) else _by_unit(found, unit, lexicon)


def _by_unit(found: Place, unit: str, lexicon: Lexicon) -> Place:
    """A joint's position, if its unit is one; else the quantity of that joint whose unit it is: `elbow_dps`."""
    for channel in ("q", "qd", "qdd", "tau", CURRENT) if found.channel == "q" and found.entry else ():
        names = lexicon.names[channel]
        sizes = dimensions(lexicon.model, "tau" if channel == CURRENT else channel)
        if found.entry in names and units.factor(unit, channel, sizes[names.index(found.entry)]) is not None:
            return found if channel == "q" else Place(channel, found.entry, unit, f"the quantity of its unit, {unit}")
    return found


def _time_unit(words: Sequence[str]) -> str | None:
    return next((word for word in reversed(words) if units.time_factor(word) is not None), None)


def _place(words: Words, column: Column, lexicon: Lexicon) -> Place | None:
    if column.values.ndim == 2:
        return _block(words, column, lexicon)
    return _entry(words, lexicon) or _pose_entry(words, lexicon) or _only_entry(words, lexicon)


def _without(words: Words, part: Words) -> Words | None:
    """What is left of words when a part that stands in them in one piece is taken out."""
    for i in range(len(words) - len(part) + 1):
        if words[i : i + len(part)] == part:
            return words[:i] + words[i + len(part) :]
    return None


def _entry(words: Words, lexicon: Lexicon) -> Place | None:
    """A joint's or actuator's name with words that say which quantity it is; the longest name counts."""
    found: list[tuple[int, Place]] = []
    for spelling in lexicon.spellings:
        rest = _without(words, spelling.words)
        if rest is None:
            continue
        said = channel_of(tuple(word for word in rest if word not in lexicon.own))
        if said != spelling.channel and not (said == "" and spelling.alone):
            continue
        if spelling.motor and any(word in POSITION for word in rest):
            continue  # a desired position is no control of an actuator that takes a torque
        rank = 2 * len(spelling.words) - bool(spelling.how)
        found.append((rank, Place(spelling.channel, spelling.entry, guessed=spelling.how)))
    return _longest(found)


def _longest(found: list[tuple[int, Place]]) -> Place | None:
    """The place with the longest name; None if two are equally long."""
    most = max((rank for rank, _ in found), default=0)
    best = {(p.channel, p.entry): p for rank, p in found if rank == most}
    return next(iter(best.values())) if len(best) == 1 else None


def _pose_entry(words: Words, lexicon: Lexicon) -> Place | None:
    """A link's or frame's name with an axis: `hand_x`, `hand.qw`, `pose/hand/orientation/w`."""
    found = []
    for spoken, body in lexicon.bodies:
        rest = _without(words, spoken)
        part = None if rest is None else pose_part(rest)
        if part is not None:
            found.append((len(spoken), Place(f"{POSE_PREFIX}{body}", part)))
    return _longest(found)


def pose_part(words: Sequence[str]) -> str | None:
    """px to qz from the words beside a body's name."""
    rest = [word for word in words if word not in FILLERS]
    if not rest:
        return None
    axis, before = rest[-1], set(rest[:-1])
    if not before <= POSE_WORDS | ROTATION_WORDS:
        return None
    if axis in POSE:
        return axis
    turned = bool(before & ROTATION_WORDS) or axis == "w"
    if axis in ("x", "y", "z", "w"):
        return f"q{axis}" if turned else f"p{axis}"
    return f"p{axis[1]}" if axis in ("tx", "ty", "tz") else None


def _only_entry(words: Words, lexicon: Lexicon) -> Place | None:
    """`velocity` of a model with one joint, or `u` of one with one actuator."""
    channel = channel_of(words)
    names = lexicon.names[channel] if channel and words != ("i",) else ()  # i alone counts rows
    return Place(channel or "", names[0], guessed="the only one there is") if len(names) == 1 else None


def _block(words: Words, column: Column, lexicon: Lexicon) -> Place | None:
    """An array over time and entries: `q`, `observations/qpos`, `action`, `pose/hand`."""
    width = column.values.shape[1]
    channel = channel_of(tuple(word for word in words if word not in lexicon.own))
    if channel == "" and any(word in ("state", "states") for word in words) and width == lexicon.model.nq:
        return Place("q", None, guessed="a state as wide as q")
    if channel and width == len(lexicon.names[channel]):
        return Place(channel, None)
    for spoken, body in lexicon.bodies:
        rest = _without(words, spoken)
        if rest is not None and set(rest) <= POSE_WORDS | FILLERS and width in (3, 7):
            return Place(f"{POSE_PREFIX if width == 7 else POINT_PREFIX}{body}", None)
    return None


def indexed(columns: Sequence[Column], lexicon: Lexicon) -> dict[str, Place]:
    """Columns such as q1, q2 or tau[0], which count joints or actuators in the model's order, from 0 or from 1."""
    groups: dict[str, list[Column]] = {}
    for column in columns:
        words = tokens(title_and_unit(column.title)[0])
        channel = channel_of(tuple(word for word in words if not word.isdigit()))
        if channel == "" and any(word in FILLERS for word in words):
            channel = "q"
        if channel and _number(column) is not None:
            groups.setdefault(channel, []).append(column)
    found = {}
    for channel, group in groups.items():
        places = counted_by_number(group, channel, lexicon)
        found |= {} if places is None else {c.name: p for c, p in zip(group, places, strict=True)}
    return found


def _number(column: Column) -> int | None:
    """The only number in a column's name, if it is one that counts."""
    numbers = [word for word in tokens(title_and_unit(column.title)[0]) if word.isdigit()]
    plain = not column.text and column.values.ndim == 1 and len(numbers) == 1 and len(numbers[0]) <= 4
    return int(numbers[0]) if plain else None


def counted_by_number(columns: Sequence[Column], channel: str, lexicon: Lexicon) -> list[Place] | None:
    """Places of columns whose numbers count all entries of a channel, from 0 or from 1; None if they do not."""
    numbers = [_number(column) for column in columns]
    singles = tuple(name for name, _, _ in single_joints(lexicon.model))
    for names in (lexicon.names[channel], () if channel == "control" else singles):
        for first in (0, 1):
            counts = sorted(-1 if n is None else n for n in numbers)
            if names and counts == list(range(first, first + len(names))):
                how, units_of = f"counted from {first}", [title_and_unit(c.title)[1] for c in columns]
                rows = zip(numbers, units_of, strict=True)
                return [Place(channel, names[(n or 0) - first], unit, how) for n, unit in rows]
    return None


def entry_in(column: Column, channel: str, lexicon: Lexicon) -> str | None:
    """The entry of a channel whose name stands in that of a column; None if there is none, or several."""
    words = tokens(title_and_unit(column.title)[0])
    spelled = [s for s in lexicon.spellings if s.channel == channel and _without(words, s.words) is not None]
    found = _longest([(len(s.words), Place(channel, s.entry)) for s in spelled])
    return None if found is None else found.entry


def target_place(target: str, lexicon: Lexicon) -> Place:
    """The place that the user gives, such as "q shoulder", "control motor1 [V]", "time [ms]" or "pixels u"."""
    title, unit = title_and_unit(target)
    channel, _, entry = title.strip().partition(" ")
    entry = entry.strip()
    if not channel:
        raise ValueError(f"columns= has an empty target {target!r}")
    if channel in SPECIAL:
        return Place(channel, None, unit)
    if channel == CURRENT:
        if entry and entry not in lexicon.names[CURRENT]:
            raise ValueError(f"columns= has target {target!r}: {channel} has {', '.join(lexicon.names[CURRENT])}")
        return Place(channel, entry or None, unit)
    if not entry and channel not in CHANNELS:
        for plain in ("q", "control"):
            if channel in lexicon.names[plain]:
                return Place(plain, channel, unit)
    if channel in CHANNELS or channel.startswith((POSE_PREFIX, POINT_PREFIX)):
        known, body = names_of(lexicon.model, channel), channel.partition("/")[2]
        bodies = body_names(lexicon.model)
        if body and body not in bodies:
            raise ValueError(
                f"columns= has target {target!r}: no link or frame {body!r}; there are {', '.join(bodies)}"
            )
        if entry and entry not in known:
            raise ValueError(f"columns= has target {target!r}: {channel} has {', '.join(known) or 'no entries'}")
    return Place(channel, entry or None, unit)


def is_ignored(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
