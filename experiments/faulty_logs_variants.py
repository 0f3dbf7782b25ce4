"""Clean logs, real and simulated, and the faults that are put into them, each with the finding that is right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import equinox as eqx
import numpy as np

import knuckle as kn
from knuckle import native, robots
from knuckle.dynamics import rnea
from knuckle.model.report import LoadWarning
from knuckle.sysid import datasets
from knuckle.sysid.findings import Finding, RecordingError

GAINS = (10.0, 10.7, 8.5, 9.0, 9.5, 10.1, 8.0)  # N m/A
UR10E = ("20_02_12-40sec_12harm", "20_02_05-20sec_12harm", "20_02_19_14harm50sec")
STATIONARY = ("20_01_17-p1", "20_01_17-p2", "20_01_17-p3")
SPAN = 25.0  # seconds of a real log


@dataclass(frozen=True)
class Log:
    """A table as a logger might write it: times, and channels of one column per joint."""

    name: str
    model: kn.Model = field(repr=False)
    time: np.ndarray = field(repr=False)
    channels: dict[str, np.ndarray] = field(repr=False)  # of q, qd, tau (time, joint)
    joints: tuple[str, ...] = ()
    gravity: tuple[int, ...] = (0,)  # joints that carry weight, the most first
    titles: dict[str, str] = field(default_factory=lambda: {"q": "{}_pos", "qd": "{}_vel", "tau": "{}_effort"})
    stamp: str = "time [s]"
    header: bool = True

    def but(self, **channels: np.ndarray) -> Log:
        return replace(self, channels={**self.channels, **channels})

    @property
    def period(self) -> float:
        return float(np.median(np.diff(self.time)))

    def text(self) -> str:
        """As CSV."""
        names = [self.stamp, *(self.titles[key].format(j) for key in self.channels for j in self.joints)]
        table = np.column_stack([self.time, *self.channels.values()])
        rows = [",".join("" if np.isnan(x) else f"{x:.10g}" for x in row) for row in table]
        return "\n".join([*([",".join(names)] if self.header else []), *rows]) + "\n"


Outcome = tuple[Sequence[Finding], RecordingError | None]


@dataclass(frozen=True)
class Variant:
    """A faulty log, and whether what a reader said of it is right."""

    kind: str
    log: Log
    wanted: str
    right: Callable[[Outcome], bool] = field(repr=False)


def found(what: str, *words: str, place: str = "") -> Callable[[Outcome], bool]:
    """Whether a finding of this kind at this place has all the words in it."""

    def right(outcome: Outcome) -> bool:
        return any(f.what == what and place in f.place and all(word in f.detail for word in words) for f in outcome[0])

    return right


def refused(*words: str) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome[1] is not None and all(word in str(outcome[1]) for word in words)


def late_by(channel: str, seconds: float, period: float) -> Callable[[Outcome], bool]:
    """Whether the offset is reported right to one sample."""

    def right(outcome: Outcome) -> bool:
        for f in outcome[0]:
            if f.what == "clock offset" and f.place == channel:
                said = float(f.detail.split(f"--shift {channel}=")[1].split()[0])
                return abs(-said - seconds) <= 1.001 * period
        return False

    return right


def zero_off(joint: str, degrees: float) -> Callable[[Outcome], bool]:
    """Whether the zero of a joint is reported to 15 degrees."""

    def right(outcome: Outcome) -> bool:
        for f in outcome[0]:
            if f.what == "zero offset" and joint in f.place:
                said = float(f.detail.split("is about ")[1].split()[0])
                return abs((said - degrees + 180) % 360 - 180) <= 15
        return False

    return right


# Clean logs


def ur10e() -> list[Log]:
    """Real logs of an arm of six joints, with the published description, which has neither friction nor rotors."""
    folder = datasets.find("ur10e")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)
        model = kn.load(folder / "ur10e.urdf")
    logs = []
    for name in sorted(path.stem for path in folder.glob("*.csv")):
        table = np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1)
        channels = {"q": table[:, 1:7], "qd": table[:, 7:13], "tau": table[:, 13:19]}
        logs.append(Log(name, model, table[:, 0], channels, model.joint_names, (1, 2, 3)))
    return logs


def moving_part(log: Log) -> Log:
    """The stretch of a log in which it moves most, so long as the experiment needs it."""
    speed = np.cumsum(np.abs(log.channels["qd"]).sum(axis=1))
    last = np.searchsorted(log.time, log.time + SPAN, side="right") - 1
    start = int(np.argmax(speed[last] - speed))
    rows = slice(start, int(last[start]) + 1)
    return replace(log, time=log.time[rows] - log.time[start], channels={k: v[rows] for k, v in log.channels.items()})


def dfki() -> list[Log]:
    """Real logs of a pendulum that a motor drives."""
    link = kn.Link("rod", joints=kn.revolute("y", name="pendulum"), mass=0.5, com=(0, 0, -0.45), inertia=(0.01,) * 3)
    model = kn.build([link], actuators=[kn.motor("pendulum", name="motor")])
    logs = []
    for run in datasets.dfki_simple_pendulum():
        channels = {key: np.array(run[key].values) for key in ("q", "qd", "tau")}
        logs.append(Log(run.name, model, np.array(run.time), channels, ("pendulum",)))
    return logs


def simulated(model: kn.Model, name: str, seed: int, seconds: float = 20.0, rate: float = 125.0, **about) -> Log:
    """A robot that follows Fourier series, of other masses, with friction, rotor inertia and noise."""
    rng, time = np.random.default_rng(seed), np.arange(round(seconds * rate)) / rate
    q, qd, qdd = np.zeros((3, len(time), model.nv))
    for harmonic in range(1, 6):
        w = 2 * np.pi * 0.12 * harmonic
        a, b = rng.normal(size=(2, model.nv)) * 0.45 / w
        phase = w * time[:, None]
        q += a * np.sin(phase) - b * np.cos(phase)
        qd += w * (a * np.cos(phase) + b * np.sin(phase))
        qdd += w**2 * (b * np.cos(phase) - a * np.sin(phase))
    mass = np.asarray(model.inertia.mass) * rng.uniform(0.75, 1.35, len(model.link_names))
    heavier = eqx.tree_at(lambda m: m.inertia.mass, model, mass)
    tau = np.asarray(native.vmap(rnea, (None, 0, 0, 0))(heavier, q, qd, qdd))
    size = np.std(tau, axis=0)
    tau = tau + 0.1 * size * (qd / np.std(qd, axis=0)) + 0.15 * size * np.tanh(qd / 0.01)
    tau += 0.1 * size * qdd / np.std(qdd, axis=0)
    tau += 0.05 * size * rng.normal(size=tau.shape)
    q, qd = q + 1e-5 * rng.normal(size=q.shape), qd + 2e-3 * rng.normal(size=q.shape)
    return Log(name, model, time, {"q": q, "qd": qd, "tau": tau}, model.joint_names, **about)


def simulated_arm(seed: int) -> Log:
    return simulated(robots.load("arm"), f"simulated arm {seed}", seed, gravity=(1, 3, 5))


def simulated_pendulum(seed: int) -> Log:
    link = kn.Link("rod", joints=kn.revolute("y", name="pendulum"), mass=0.6, com=(0, 0, -0.4), inertia=(0.02,) * 3)
    model = kn.build([link], actuators=[kn.motor("pendulum", name="motor")])
    return simulated(model, f"simulated pendulum {seed}", seed)


def simulated_double_pendulum(seed: int) -> Log:
    """At 500 Hz, a few seconds."""
    upper, lower = kn.revolute("y", name="shoulder"), kn.revolute("y", name="elbow")
    links = [
        kn.Link("upper", joints=upper, mass=0.6, com=(0, 0, -0.2), inertia=(0.02,) * 3),
        kn.Link("lower", "upper", lower, (0, 0, -0.3), mass=0.5, com=(0, 0, -0.15), inertia=(0.01,) * 3),
    ]
    model = kn.build(links, actuators=[kn.motor("shoulder", name="first"), kn.motor("elbow", name="second")])
    about = {"gravity": (0, 1), "seconds": 10.0, "rate": 500.0}
    return simulated(model, f"simulated double pendulum {seed}", seed, **about)


def simulated_scara(seed: int) -> Log:
    """Two hinges about the vertical, a vertical slide, and a wrist."""
    joints = (
        kn.revolute("z", name="shoulder"), kn.revolute("z", name="elbow"), kn.prismatic("z", name="slide"),
        kn.revolute("z", name="wrist"),
    )  # fmt: skip
    bodies = ((6.0, 0.25, 0.2), (4.0, 0.2, 0.1), (1.5, 0.0, 0.02), (0.5, 0.02, 0.005))  # mass, centre, inertia
    places = ((0, 0, 0.4), (0.4, 0, 0), (0.35, 0, 0), (0, 0, -0.1))
    links, parent = [], ()
    for k, (joint, (mass, reach, inertia), place) in enumerate(zip(joints, bodies, places, strict=True)):
        body = {"mass": mass, "com": (reach, 0.01 * k, -0.05), "inertia": (inertia,) * 3}
        links.append(kn.Link(f"link{k}", *parent, joints=joint, position=place, **body))
        parent = (links[-1].name,)
    model = kn.build(links, actuators=[kn.motor(joint.name, name=f"{joint.name}_motor") for joint in joints])
    return simulated(model, f"simulated SCARA {seed}", seed, gravity=(2,))


# Faults


def variants_of(log: Log, seed: int) -> list[Variant]:
    """All faults of one clean log."""
    rng = np.random.default_rng(seed)
    return [*units(log), *signs(log, rng), *delays(log), *values(log, rng), *times(log, rng), *joints(log, rng)]


def units(log: Log) -> list[Variant]:
    q, qd, tau = (log.channels[key] for key in ("q", "qd", "tau"))
    n, joint = len(log.joints), log.joints[log.gravity[0]]
    gains = np.array(GAINS[:n])
    amperes = replace(log.but(tau=tau / gains), titles={**log.titles, "tau": "{}_current [A]"})
    bare = replace(log, header=False)
    ranges = [f"--column 'q={'2' if n == 1 else f'2:{n + 1}'}'", f"--column 'tau={2 + 2 * n}"]
    scaled = tau.copy()
    scaled[:, log.gravity[0]] *= 1000
    return [
        Variant("degrees of positions", log.but(q=np.degrees(q)), "degrees", found("degrees", place="q ")),
        Variant("degrees of velocities", log.but(qd=np.degrees(qd)), "degrees", found("degrees", place="qd")),
        Variant("milliseconds called s", replace(log, time=1e3 * log.time), "time unit", found("time unit", "ms")),
        Variant("currents as efforts", log.but(tau=tau / gains), f"scale of {joint}",
                found("force scale", "current", place=joint)),
        Variant("columns of currents", amperes, "asks for --gain", refused("motor currents", "--gain ")),
        Variant("milli-newton metres", log.but(tau=scaled), f"scale of {joint}", found("force scale", place=joint)),
        Variant("no header", bare, "suggests ranges", refused("no header", *ranges)),
    ]  # fmt: skip


def signs(log: Log, rng: np.random.Generator) -> list[Variant]:
    q, qd, tau = (log.channels[key] for key in ("q", "qd", "tau"))
    made = []
    k = log.gravity[int(rng.integers(len(log.gravity)))]
    turned = np.where(np.arange(len(log.joints)) == k, -1.0, 1.0)
    joint = log.joints[k]
    made.append(Variant("sign of a torque", log.but(tau=tau * turned), f"sign of {joint}", _sign(joint)))
    made.append(Variant("sign of a motion", log.but(q=q * turned, qd=qd * turned), f"sign of {joint}", _sign(joint)))
    wrong = found("opposite sign", place=joint)
    made.append(Variant("sign of a velocity", log.but(qd=qd * turned), f"sign of qd {joint}", wrong))
    if len(log.joints) > 1:
        other = np.where(np.arange(len(log.joints)) == 0, -1.0, 1.0)
        first = log.joints[0]
        made.append(Variant("sign of the first torque", log.but(tau=tau * other), f"sign of {first}", _sign(first)))
    for degrees in (90.0, -60.0) if len(log.joints) > 1 else (90.0,):
        k = log.gravity[int(rng.integers(len(log.gravity)))]
        off = np.where(np.arange(len(log.joints)) == k, np.radians(degrees), 0.0)
        name = log.joints[k]
        made.append(Variant(f"zero off by {degrees:g}", log.but(q=q + off), f"{name} by {degrees:g} degrees",
                            zero_off(name, degrees)))  # fmt: skip
    return made


def _sign(joint: str) -> Callable[[Outcome], bool]:
    """Torques and motions of the wrong sign look alike where only friction tells them apart: either is right."""

    def right(outcome: Outcome) -> bool:
        return any(f.what in ("opposite force", "opposite motion") and joint in f.place for f in outcome[0])

    return right


def delays(log: Log) -> list[Variant]:
    made = []
    for seconds in (0.05, -0.03, 0.02):
        seconds = np.sign(seconds) * max(abs(seconds), 2 * log.period)
        what = f"{1e3 * abs(seconds):.0f} ms {'late' if seconds > 0 else 'early'}"
        made.append(Variant(f"torques {what}", delayed(log, "tau", seconds), what, late_by("tau", seconds, log.period)))
    seconds = 4 * log.period
    late = delayed(log, "qd", seconds)
    made.append(Variant("velocities late", late, "4 samples late", late_by("qd", seconds, log.period)))
    return made


def delayed(log: Log, channel: str, seconds: float) -> Log:
    """One channel stamped late, without the ends where it would be unknown."""
    late = np.stack([np.interp(log.time - seconds, log.time, x) for x in log.channels[channel].T], axis=1)
    known = (log.time - seconds >= log.time[0]) & (log.time - seconds <= log.time[-1])
    channels = {key: x[known] for key, x in log.but(**{channel: late}).channels.items()}
    return replace(log, time=log.time[known], channels=channels)


def values(log: Log, rng: np.random.Generator) -> list[Variant]:
    made, rows = [], len(log.time)
    speed = np.abs(log.channels["qd"])
    k = int(np.argmax(speed.sum(axis=0)))
    joint, span = log.joints[k], max(round(0.4 / log.period), 20)
    fast = np.convolve(speed[:, k], np.ones(span), mode="valid")[: rows - 2 * span]
    start = int(np.argmax(fast))
    for key in ("q", "qd", "tau"):
        stuck = log.channels[key].copy()
        stop = start + span if key != "tau" else rows
        stuck[start:stop, k] = stuck[start, k]
        made.append(Variant(f"{key} frozen", log.but(**{key: stuck}), f"frozen {key} {joint}",
                            found("frozen", place=f"{key} {joint}")))  # fmt: skip
    for key, times in (("q", 1.0), ("tau", 2.0), ("qd", 3.0)):
        odd = log.channels[key].copy()
        at = rng.choice(np.arange(20, rows - 20), 5, replace=False)
        odd[at, k] += times * (np.ptp(odd[:, k]) + (0.3 if key != "tau" else 0.0)) * rng.choice([-1, 1], 5)
        made.append(Variant(f"outliers of {key}", log.but(**{key: odd}), f"spikes {key} {joint}",
                            _spikes(f"{key} {joint}")))  # fmt: skip
    return [*made, standing(log, rng)]


def _spikes(place: str) -> Callable[[Outcome], bool]:
    def right(outcome: Outcome) -> bool:
        return any(f.what in ("spikes", "outliers") and f.place == place and f.count == 5 for f in outcome[0])

    return right


def standing(log: Log, rng: np.random.Generator) -> Variant:
    """The robot in one of its poses, encoders flickering by a digit: it is kept, and no channel is called frozen."""
    rows = len(log.time)
    q = np.tile(log.channels["q"][rows // 3], (rows, 1)) + 1e-5 * rng.integers(0, 2, (rows, len(log.joints)))
    tau = log.channels["tau"][rows // 3] + 0.02 * np.std(log.channels["tau"], axis=0) * rng.normal(size=q.shape)

    def right(outcome: Outcome) -> bool:
        calm = all(f.action == "note" for f in outcome[0])
        return calm and any(f.what == "stationary" and "no joint moves" in f.detail for f in outcome[0])

    return Variant("standing still", log.but(q=q, qd=0 * q, tau=tau), "stationary, kept", right)


def times(log: Log, rng: np.random.Generator) -> list[Variant]:
    rows = len(log.time)
    again = np.sort(np.concatenate([np.arange(rows), rng.choice(rows, 12, replace=False)]))
    doubled = replace(log, time=log.time[again], channels={k: v[again] for k, v in log.channels.items()})
    keep = np.ones(rows, bool)
    keep[rows // 2 : rows // 2 + 40] = False
    lost = replace(log, time=log.time[keep], channels={k: v[keep] for k, v in log.channels.items()})

    def twelve(outcome: Outcome) -> bool:
        return any(f.what == "duplicate stamps" and f.count == 12 for f in outcome[0])

    return [
        Variant("stamps twice", doubled, "12 duplicates", twelve),
        Variant("lost samples", lost, "gaps", found("gaps", "longest")),
    ]


def joints(log: Log, rng: np.random.Generator) -> list[Variant]:
    """Columns of two joints exchanged: torques, motions, or all."""
    if len(log.joints) < 2:
        return []
    a, b = (log.gravity[i] for i in rng.choice(len(log.gravity), 2, replace=False))
    order = np.arange(len(log.joints))
    order[[a, b]] = b, a
    names = [log.joints[k] for k in sorted((a, b))]

    def right(outcome: Outcome) -> bool:
        return any(f.what == "exchanged joints" and all(name in f.place for name in names) for f in outcome[0])

    wanted, made = f"{names[0]} and {names[1]} exchanged", []
    for kind, keys in (("torques", ("tau",)), ("motions", ("q", "qd")), ("joints", ("q", "qd", "tau"))):
        swapped = log.but(**{key: log.channels[key][:, order] for key in keys})
        made.append(Variant(f"exchanged {kind}", swapped, wanted, right))
    swapped = log.but(qd=log.channels["qd"][:, order])
    foreign = found("foreign velocity", place=names[0])
    made.append(Variant("exchanged velocities", swapped, f"foreign velocities of {names[0]}", foreign))
    return made
