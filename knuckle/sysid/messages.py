"""Messages of ROS and of JSON logs sorted into streams: joint states, poses, transforms, arrays, and plain numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import Column, Run, Stream, check_columns, check_size
from knuckle.sysid.words import is_time

SECOND = 1_000_000_000
APART = SECOND // 2  # header stamps that differ more than this from the times of the log are on another clock
MOST_NUMBERS = 1000  # in a message
LEAST = 64  # bytes that a message takes here, however short
STATES = ("position", "velocity", "effort")
Rows = list[tuple[int, int | None, Any]]  # time of the log [ns], stamp of the header [ns], values


def get(message: Any, name: str, default: Any = None) -> Any:
    """A field of a message, which is an object or a mapping."""
    return message.get(name, default) if isinstance(message, Mapping) else getattr(message, name, default)


class Messages:
    """Collects messages one by one; `run` makes streams of them."""

    def __init__(self, path: Path, skip: Callable[[str], bool], max_bytes: int):
        self.path, self.skip, self.max_bytes = path, skip, max_bytes
        self.bytes = 0
        self.states: dict[tuple[str, tuple[str, ...]], Rows] = {}
        self.poses: dict[tuple[str, str, str], Rows] = {}  # topic, body, what it is relative to
        self.arrays: dict[str, Rows] = {}
        self.plain: dict[str, Rows] = {}
        self.unread: Counter[tuple[str, str]] = Counter()

    def count(self, size: int) -> None:
        """Counts the bytes of a message; too many are refused."""
        self.bytes += size + LEAST
        check_size(self.path, self.bytes, self.max_bytes, "unpacked, it")

    def add(self, topic: str, kind: str, log_time: int, message: Any, is_json: bool = False) -> None:
        if self.skip(topic):
            return
        name = kind.replace(".", "/").rpartition("/")[2]
        stamp = _stamp(message)
        if name == "JointState" or _is_joint_state(message):
            names = tuple(str(n) for n in get(message, "name"))
            self.states.setdefault((topic, names), []).append((log_time, stamp, _states(message, len(names))))
        elif name in ("PoseStamped", "PoseInFrame", "PoseWithCovarianceStamped", "Odometry"):
            pose = get(message, "pose")
            self._pose(topic, "", "", log_time, stamp, get(pose, "pose", pose), "position", "orientation")
        elif name in ("TransformStamped", "FrameTransform"):
            self._transform(topic, log_time, message)
        elif name in ("TFMessage", "FrameTransforms"):
            for transform in get(message, "transforms") or ():
                self._transform(topic, log_time, transform)
        elif name in ("Float64MultiArray", "Float32MultiArray"):
            self.arrays.setdefault(topic, []).append((log_time, stamp, [float(x) for x in get(message, "data")]))
        elif name in ("Float64", "Float32"):
            self.plain.setdefault(topic, []).append((log_time, stamp, {"": float(get(message, "data"))}))
        elif is_json and isinstance(message, Mapping):
            self.plain.setdefault(topic, []).append((log_time, None, _flat(message)))
        else:
            self.unread[topic, kind] += 1

    def _transform(self, topic: str, log_time: int, message: Any) -> None:
        body = str(get(message, "child_frame_id"))
        parent = get(get(message, "header"), "frame_id") or get(message, "parent_frame_id") or ""
        pose = get(message, "transform", message)
        self._pose(
            topic, body.strip("/"), str(parent).strip("/"), log_time, _stamp(message), pose, "translation", "rotation"
        )

    def _pose(self, topic, body, parent, log_time, stamp, pose, place: str, turn: str) -> None:
        p, q = get(pose, place), get(pose, turn)
        values = [float(get(p, a)) for a in "xyz"] + [float(get(q, a)) for a in "wxyz"]
        self.poses.setdefault((topic, body, parent), []).append((log_time, stamp, values))

    def run(self) -> Run:
        """One run of all that was read; each topic on its own clock."""
        notes = [(f"topic of type {k}", t, n, "this type is not read") for (t, k), n in self.unread.items()]
        offset = self._clock_offset(notes)
        streams = [self._state_stream(t, names, rows, offset) for (t, names), rows in self.states.items()]
        streams += self._pose_streams(offset, notes)
        streams += [self._array_stream(t, rows, offset) for t, rows in self.arrays.items()]
        streams += [s for t, rows in self.plain.items() for s in _plain_streams(t, rows, offset)]
        check_columns(self.path, sum(len(s.columns) for s in streams))
        if not streams:
            seen = ", ".join(f"{t} ({k})" for t, k in self.unread) or "none"
            raise RecordingError(self.path, f"no joint states, poses, arrays or numbers; topics there are: {seen}")
        return Run(self.path.stem, tuple(streams), notes=tuple(notes))

    def _clock_offset(self, notes: list) -> int:
        """What to add to header stamps [ns], so that topics with and without a header are on one clock."""
        rows = [
            row for group in (self.states, self.poses, self.arrays, self.plain) for r in group.values() for row in r
        ]
        apart = [log - stamp for log, stamp, _ in rows if stamp is not None]
        if not apart or len(apart) == len(rows) or abs(int(np.median(apart))) < APART:
            return 0
        offset = int(np.median(apart))
        detail = (
            f"header stamps are {offset / SECOND:.6g} s behind the times of the log, which other topics have; shifted"
        )
        notes.append(("two clocks", "stamps", len(apart), detail))
        return offset

    def _state_stream(self, topic: str, names: tuple[str, ...], rows: Rows, offset: int) -> Stream:
        columns = [_stamps(topic, rows, offset)]
        for i, state in enumerate(STATES):
            table = np.array([row[2][i] for row in rows], float).reshape(len(rows), len(names))
            if np.isfinite(table).any():
                columns += [Column(f"{topic}/{n}/{state}", table[:, j], f"{n}/{state}") for j, n in enumerate(names)]
        return Stream(tuple(columns))

    def _pose_streams(self, offset: int, notes: list) -> list[Stream]:
        children = {body for _, body, _ in self.poses if body}
        streams = []
        for (topic, body, parent), rows in self.poses.items():
            if body and parent in children:
                notes.append(
                    ("relative pose", f"{topic}/{body}", len(rows), f"relative to {parent}, not to a root; not read")
                )
                continue
            name = f"{topic}/{body}" if body else topic
            values = Column(name, np.array([row[2] for row in rows], float), body or topic, order="wxyz")
            streams.append(Stream((_stamps(name, rows, offset), values)))
        return streams

    def _array_stream(self, topic: str, rows: Rows, offset: int) -> Stream:
        widths = {len(row[2]) for row in rows}
        if len(widths) != 1:
            raise RecordingError(self.path, f"arrays of one length expected, got lengths {sorted(widths)[:5]}", topic)
        return Stream((_stamps(topic, rows, offset), Column(topic, np.array([row[2] for row in rows], float))))


def _stamps(name: str, rows: Rows, offset: int) -> Column:
    stamps = [log if stamp is None else stamp + offset for log, stamp, _ in rows]
    return Column(f"{name}/stamp [ns]", np.array(stamps, np.int64), "stamp [ns]")


def _stamp(message: Any) -> int | None:
    """The header's stamp [ns]; None if there is none, or it was never set."""
    stamp = get(get(message, "header"), "stamp") or get(message, "timestamp")
    seconds = get(stamp, "sec", get(stamp, "secs"))
    rest = get(stamp, "nanosec", get(stamp, "nsec", get(stamp, "nsecs", 0)))
    if not isinstance(seconds, int | np.integer):
        return None
    return int(seconds) * SECOND + int(rest or 0) or None


def _is_joint_state(message: Any) -> bool:
    return isinstance(get(message, "name"), list) and isinstance(get(message, "position"), list)


def _states(message: Any, count: int) -> list[list[float]]:
    """Positions, velocities and efforts; NaN for those that are not sent."""
    found = []
    for state in STATES:
        values = get(message, state)
        values = [] if values is None else [float(x) for x in values]
        found.append(values if len(values) == count else [np.nan] * count)
    return found


def _flat(message: Any, path: str = "") -> dict[str, Any]:
    """Numbers, and lists of numbers, by their path."""
    found: dict[str, Any] = {}
    for key, value in message.items():
        where = f"{path}/{key}" if path else str(key)
        if isinstance(value, Mapping):
            found |= _flat(value, where)
        elif isinstance(value, int | float):
            found[where] = float(value) if isinstance(value, float | bool) else value
        elif isinstance(value, list) and value and all(isinstance(x, int | float) for x in value):
            found[where] = [float(x) for x in value]
        if len(found) > MOST_NUMBERS:
            raise ValueError(f"more than {MOST_NUMBERS} numbers in one message")
    return found


def _plain_streams(topic: str, rows: Rows, offset: int) -> list[Stream]:
    """One stream for each set of fields."""
    groups: dict[tuple, Rows] = {}
    for row in rows:
        shape = tuple((k, len(v) if isinstance(v, list) else 0) for k, v in row[2].items())
        groups.setdefault(shape, []).append(row)
    streams = []
    for shape, group in groups.items():
        columns = [] if any(is_time(key) for key, _ in shape) else [_stamps(topic, group, offset)]
        for key, _ in shape:
            values = np.array([row[2][key] for row in group])
            exact = values.dtype.kind in "iu" and is_time(key)
            name = f"{topic}/{key}" if key else topic
            columns.append(Column(name, values if exact else values.astype(float), key or topic))
        if columns:
            streams.append(Stream(tuple(columns)))
    return streams
