"""What changed between two sets of logs: planted changes on a simulated arm and on logs of a real one.

Simulated: two logs of 30 s of the built-in seven-joint arm with different motions, effort noise of 4 % correlated
over 0.2 s, masses that are up to 30 % off the description, and friction of each joint that drifts by up to 5 %. One of
six things happens between the logs. Real: a UR10e (Mamedov and Mikhel 2020) with and without a load of 2.805 kg; all
pairs of logs without load; changes added to the torques and positions of logs without load.
Right is the planted change alone, or one that is said not to be told from it.
Run: python experiments/what_changed.py [--quick] [--only PART,...]. Writes experiments/results/what_changed.{md,json};
parts are simulated, gains, load, nothing and planted, and those not named are kept as they are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from scipy.signal import lfilter

import knuckle as kn
from knuckle import native, robots, sysid
from knuckle.dynamics import rnea
from knuckle.model.report import LoadWarning
from knuckle.sysid import datasets
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.fitted import with_inertial

RESULTS = Path(__file__).parent / "results"
SECONDS, RATE = 30.0, 100.0
NOISE, CORRELATION = 0.04, 0.2  # share of the effort's root mean square, [s]
VISCOUS, COULOMB = 0.1, 0.1  # of the effort's root mean square: at 1 rad/s, and dry
DRIFT = 0.05  # of friction between the logs, at most
SEEDS, NOTHING_SEEDS, PLANTED_SEEDS = 5, 20, 6
MASS, FRICTION, OFFSET, ZERO = 1.0, 1.3, 0.5, 0.05  # [kg], factor, of the joint's friction, [rad]
MASSES, FRICTIONS = (0.5, 1.0, 2.0), (0.7, 1.3, 1.5)  # the same, planted in real logs
OFFSETS, ZEROS = (0.4, 0.6, 0.8), (0.03, 0.05, 0.08)
UNLOADED = (
    "20_02_05-20sec_12harm", "20_02_06-20sec_5harm", "20_02_10-30sec_12harm", "20_02_12-40sec_12harm",
    "20_02_19_14harm50sec",
)  # fmt: skip
LOADED, LOAD, FLANGE = "20_02_19_14harm50secLoad", 2.805, "wrist_3_link"


class Case(NamedTuple):
    """What was planted and what was found."""

    planted: tuple[str, str] | None  # kind and place
    found: list[tuple[str, str]]
    drifts: int
    true: float  # mass of a payload, else NaN
    interval: tuple[float, float]
    notes: str
    ties: list[tuple[str, str]] = []  # noqa: RUF012 (not changed): named as explanations that are as good

    @property
    def exact(self) -> bool:
        return self.found == ([] if self.planted is None else [self.planted])

    @property
    def right(self) -> bool:
        """One change, which is the planted one or is said not to be told from it; or nothing."""
        return self.exact or (len(self.found) == 1 and self.planted in self.ties)


def judged(found: sysid.Changes, planted: tuple[str, str] | None, true: float, notes: str) -> Case:
    masses = [c["mass"] for c in found.changes if c.kind == "payload"]
    interval = (masses[0].lower, masses[0].upper) if masses else (np.nan, np.nan)
    pairs = [(c.kind, c.place) for c in found.changes]
    ties = [tie for change in found.changes for tie in change.ties]
    return Case(planted, pairs, len(found.drifts), true, interval, notes, ties)


def motion(model: kn.Model, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Time, positions, velocities and accelerations: Fourier series of six harmonics of 0.1 Hz."""
    rng, time = np.random.default_rng(seed), np.arange(round(SECONDS * RATE)) / RATE
    w = 2 * np.pi * 0.1 * np.arange(1, 7)[:, None, None]
    a, b = rng.normal(size=(2, 6, 1, model.nv)) * 0.5 / w
    phase = w * time[:, None]
    q = np.sum(a * np.sin(phase) - b * np.cos(phase), axis=0)
    qd = np.sum(w * (a * np.cos(phase) + b * np.sin(phase)), axis=0)
    return time, q, qd, np.sum(w**2 * (b * np.cos(phase) - a * np.sin(phase)), axis=0)


def rigid_torques(model: kn.Model, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
    return np.asarray(native.vmap(lambda *x: rnea(model, *x))(q, qd, qdd))


@cache
def true_arm() -> kn.Model:
    """The built-in arm with other masses, rotor inertia, and friction on the scale of each joint's effort."""
    model = robots.load("arm")
    mass = np.asarray(model.inertia.mass) * np.linspace(0.8, 1.3, model.nv)
    model = eqx.tree_at(lambda m: (m.inertia.mass, m.armature), model, (mass, np.full(model.nv, 0.3)))
    size = np.sqrt(np.mean(np.square(rigid_torques(model, *motion(model, 0)[1:])), axis=0))
    joints = (VISCOUS * size, COULOMB * size, np.full(model.nv, 0.01))
    return eqx.tree_at(lambda m: (m.damping, m.friction, m.friction_speed), model, joints)


def payload(mass: float, centre: np.ndarray, radius: float = 0.04) -> np.ndarray:
    """Ten inertial parameters of a ball."""
    c = centre
    away = (c @ c) * np.eye(3) - np.outer(c, c) + 0.4 * radius**2 * np.eye(3)
    return mass * np.array([1, *c, away[0, 0], away[1, 1], away[2, 2], away[0, 1], away[0, 2], away[1, 2]])


def with_payload(model: kn.Model, link: str, body: np.ndarray) -> kn.Model:
    pi = np.array(inertial(model)).reshape(-1, 10)
    pi[model.link_names.index(link)] += body
    return with_inertial(model, pi)


def log(model: kn.Model, seed: int, offset: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> sysid.Recording:
    """A log with noise; `offset` [N m] is added to the efforts, `zero` [rad] to the positions, `scale` multiplies."""
    rng = np.random.default_rng(10_000 + seed)
    time, q, qd, qdd = motion(model, seed)
    friction = np.asarray(model.damping) * qd + np.asarray(model.friction) * np.tanh(qd / 0.01)
    tau = rigid_torques(model, q, qd, qdd) + friction
    keep = np.exp(-1 / (RATE * CORRELATION))
    noise = np.asarray(lfilter([np.sqrt(1 - keep**2)], [1, -keep], rng.normal(size=tau.shape), axis=0))
    tau = scale * (tau + offset + NOISE * np.sqrt(np.mean(tau**2, axis=0)) * noise)
    q, qd = q + zero + 1e-5 * rng.normal(size=q.shape), qd + 1e-3 * rng.normal(size=q.shape)
    return sysid.Recording.of(model, time, q=q, qd=qd, tau=tau, name=f"log {seed}")


def simulated_pair(kind: str, seed: int) -> tuple[sysid.Recording, sysid.Recording, tuple[str, str] | None, float]:
    """Logs before and after, what happened between them, and the mass of a payload."""
    model, none = true_arm(), np.zeros(true_arm().nv)
    rng = np.random.default_rng(777 + seed)
    joint = 2 * seed % model.nv  # another joint for each seed
    factors = 1 + DRIFT * rng.uniform(-1, 1, size=model.nv)
    direction = rng.normal(size=3)
    centre = 0.08 * direction / np.linalg.norm(direction)
    after, offset, zero = model, none, none.copy()
    planted, mass, name = None, np.nan, model.joint_names[joint]
    if kind in ("payload on hand", "payload on another link"):
        links = model.link_names
        link = links[-1] if kind == "payload on hand" else links[2 + seed % (len(links) - 3)]
        after, mass, planted = with_payload(model, link, payload(MASS, centre)), MASS, ("payload", link)
    elif kind == "friction":
        factors[joint], planted = FRICTION, ("friction", name)
    elif kind == "offset":
        scale = np.asarray(model.friction)[joint] + np.asarray(model.damping)[joint]
        offset = none.copy()
        offset[joint], planted = OFFSET * scale * rng.choice([-1, 1]), ("offset", name)
    elif kind == "zero":
        joint = 1 + seed % 3  # a wrist carries too little to show it
        zero[joint], planted = ZERO * rng.choice([-1, 1]), ("zero", model.joint_names[joint])
    rubbing = (factors * np.asarray(after.damping), factors * np.asarray(after.friction))
    after = eqx.tree_at(lambda m: (m.damping, m.friction), after, rubbing)
    ones = np.ones(model.nv)
    return log(model, 2 * seed, none, none, ones), log(after, 2 * seed + 1, offset, zero, ones), planted, mass


KINDS = ("payload on hand", "payload on another link", "friction", "offset", "zero", "nothing")


def simulated(seeds: int, nothing_seeds: int, kinds: Sequence[str] = KINDS) -> dict[str, list[Case]]:
    model, found = robots.load("arm"), {}
    for kind in kinds:
        found[kind] = []
        for seed in range(nothing_seeds if kind == "nothing" else seeds):
            before, after, planted, mass = simulated_pair(kind, seed)
            changes = sysid.find_changes(model, before, after)
            case = judged(changes, planted, mass, str(changes).splitlines()[0])
            found[kind].append(case)
            print(f"{kind} {seed}: {'right' if case.right else 'WRONG'}: {planted}; {case.notes}", flush=True)
    return found


def simulated_gains(seeds: int) -> dict[str, Any]:
    """Efforts scaled by unknown factors, a known load on the hand: intervals of the gains that hold the truth."""
    model, inside, determined = robots.load("arm"), [], []
    for seed in range(seeds):
        arm, none = true_arm(), np.zeros(true_arm().nv)
        rng = np.random.default_rng(99 + seed)
        gains = rng.uniform(0.8, 1.25, size=arm.nv)
        loaded = with_payload(arm, arm.link_names[-1], payload(2.0, 0.08 * rng.normal(size=3)))
        before, after = log(arm, 2 * seed, none, none, 1 / gains), log(loaded, 2 * seed + 1, none, none, 1 / gains)
        for gain, true in zip(
            sysid.find_changes(model, before, after, load={arm.link_names[-1]: 2.0}).gains, gains, strict=True
        ):
            determined.append(gain.determined)
            if gain.determined:
                inside.append(bool(gain.lower <= true <= gain.upper))
        print(f"gains {seed}: {np.mean(inside):.3f} of {len(inside)} inside", flush=True)
    return {"inside": float(np.mean(inside)), "cases": len(inside), "determined": float(np.mean(determined))}


def ur10e() -> tuple[kn.Model, Callable[[str], sysid.Recording]]:
    folder = datasets.find("ur10e")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadWarning)
        model = kn.load(folder / "ur10e.urdf")
    return model, cache(lambda name: sysid.read_recordings(folder / f"{name}.csv", model)[0])


def real_load(names: Sequence[str]) -> dict[str, Any]:
    """The load from each log without it, and the drive gains with its mass given."""
    model, read = ur10e()
    rows = {}
    for name in names:
        options = {"load": {FLANGE: LOAD}, "regression": _regression(name)}
        found = sysid.find_changes(model, read(name), read(LOADED), **options)
        case = judged(found, ("payload", FLANGE), LOAD, str(found).splitlines()[0])
        rows[name] = {
            "right": case.right,
            "interval": case.interval,
            "gains": {g.joint: (g.scale, g.lower, g.upper) for g in found.gains},
            "drifts": max((d.size for d in found.drifts), default=0.0),
            "share": found.changes[0].share if found.changes else 0.0,
        }
        print(f"{name}: {case.notes}", flush=True)
    return rows


def halves(model: kn.Model, run: sysid.Recording) -> list[sysid.Recording]:
    middle = (run.time[0] + run.time[-1]) / 2
    parts = []
    for k, keep in enumerate((run.time < middle, run.time >= middle)):
        q, qd, tau = (run[key].values[keep] for key in ("q", "qd", "tau"))
        name = f"{run.name}, half {k + 1}"
        parts.append(sysid.Recording.of(model, run.time[keep], q=q, qd=qd, tau=tau, name=name))
    return parts


def real_nothing() -> list[Case]:
    """All pairs of logs without load, on different days, and halves of logs."""
    model, read = ur10e()
    pairs = [(read(a), read(b)) for a, b in itertools.combinations(UNLOADED, 2)]
    pairs += [tuple(halves(model, read(name))) for name in UNLOADED[2:]]
    cases = []
    for before, after in pairs:
        known = _regression(before.name) if before.name in UNLOADED else None
        found = sysid.find_changes(model, before, after, regression=known)
        cases.append(judged(found, None, np.nan, f"{before.name}, {after.name}"))
        print(f"{cases[-1].notes}: {cases[-1].found or 'nothing'}", flush=True)
    return cases


def planted_in(model: kn.Model, run: sysid.Recording, kind: str, rng: np.random.Generator):
    """A real log with a change added to its torques or positions, what it is, and the mass of a payload."""
    fitted = _regression(run.name).plain_model()
    joint = int(rng.integers(model.nv))
    name, tau, q = model.joint_names[joint], run["tau"].values.copy(), run["q"].values.copy()
    qd, mass = run["qd"].values, np.nan
    friction = np.asarray(fitted.damping)[joint] * qd[:, joint]
    friction = friction + np.asarray(fitted.friction)[joint] * np.tanh(qd[:, joint] / 0.01)
    if kind == "friction":
        tau[:, joint] += (rng.choice(FRICTIONS) - 1) * friction
        planted = ("friction", name)
    elif kind == "offset":
        tau[:, joint] += rng.choice(OFFSETS) * np.sqrt(np.mean(friction**2)) * rng.choice([-1, 1])
        planted = ("offset", name)
    elif kind == "zero":
        joint = int(rng.integers(1, 4))  # other wrists carry too little to show it, the first joint is vertical
        q[:, joint] += rng.choice(ZEROS) * rng.choice([-1, 1])
        planted = ("zero", model.joint_names[joint])
    else:
        link = model.link_names[-1] if kind == "payload on hand" else model.link_names[int(rng.integers(2, 5))]
        mass, planted = float(rng.choice(MASSES)), ("payload", link)
        body = with_payload(model, link, payload(mass, 0.08 * rng.normal(size=3)))
        qdd = np.gradient(qd, run.time, axis=0)
        tau += rigid_torques(body, q, qd, qdd) - rigid_torques(model, q, qd, qdd)
    return sysid.Recording.of(model, run.time, q=q, qd=qd, tau=tau, name=f"{run.name} with {kind}"), planted, mass


@cache
def _regression(name: str) -> sysid.Regression:
    model, read = ur10e()
    return sysid.regress(model, read(name))


def real_planted(seeds: int) -> list[Case]:
    model, read = ur10e()
    cases = []
    for k, kind in enumerate(k for k in KINDS if k != "nothing"):
        for seed in range(seeds):
            rng = np.random.default_rng(31 * k + seed)
            first, second = rng.choice(len(UNLOADED), size=2, replace=False)
            after, planted, mass = planted_in(model, read(UNLOADED[second]), kind, rng)
            known = _regression(UNLOADED[first])
            found = sysid.find_changes(model, read(UNLOADED[first]), after, regression=known)
            cases.append(judged(found, planted, mass, f"{UNLOADED[first]}, {after.name}"))
            said = "right" if cases[-1].exact else "tie" if cases[-1].right else "WRONG"
            print(f"{cases[-1].notes}: {said}: {planted}: {'; '.join(map(str, found.changes))}", flush=True)
    return cases


PARTS: dict[str, Callable[[], Any]] = {
    "simulated": lambda: simulated(SEEDS, NOTHING_SEEDS),
    "gains": lambda: simulated_gains(SEEDS),
    "load": lambda: real_load(UNLOADED),
    "nothing": real_nothing,
    "planted": lambda: real_planted(PLANTED_SEEDS),
}


def experiment(quick: bool, parts: Sequence[str] = tuple(PARTS)) -> dict[str, Any]:
    """Results of some parts, with the kept ones of the others."""
    if quick:
        return {"simulated": simulated(1, 1, ("payload on hand", "nothing"))}
    made = {name: PARTS[name]() for name in parts}
    return made if len(made) == len(PARTS) else {**kept_results(), **made}


def claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What must hold, with what was measured."""
    changed = [case for kind, cases in found["simulated"].items() if kind != "nothing" for case in cases]
    nothing = found["simulated"]["nothing"]
    right, alarms = np.mean([c.right for c in changed]), np.mean([not c.right for c in nothing])
    made = [
        _claim("simulated arm: right answer", right, ">= 0.9", right >= 0.9),
        _claim("simulated arm, nothing changed: false alarms", alarms, "<= 0.05", alarms <= 0.05),
    ]
    for kind, cases in found["simulated"].items():
        share = np.mean([c.right for c in cases])
        made.append(_claim(f"simulated arm, {kind}: right answer", share, ">= 0.8", share >= 0.8))
    bodies = [c for c in changed if c.right and np.isfinite(c.true) and np.isfinite(c.interval[0])]
    held = np.mean([c.interval[0] <= c.true <= c.interval[1] for c in bodies]) if bodies else np.nan
    made.append(_claim("simulated arm: 95 % intervals that hold the payload's mass", held, ">= 0.9", held >= 0.9))
    if "gains" in found:
        inside = found["gains"]["inside"]
        made.append(_claim("simulated arm: 95 % intervals that hold the drive gain", inside, ">= 0.9", inside >= 0.9))
    return made + (_real_claims(found) if "load" in found else [])


def _real_claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    rows = found["load"]
    right = np.mean([row["right"] for row in rows.values()])
    share = min(row["share"] for row in rows.values())
    lower, upper = (np.array([row["interval"][k] for row in rows.values()]) for k in (0, 1))
    apart, inside = _agreement(lower, upper), []
    for joint in next(iter(rows.values()))["gains"]:
        ends = np.array([row["gains"][joint][1:] for row in rows.values()])
        inside += _agreement(*ends[np.isfinite(ends[:, 0])].T).tolist()
    alarms = np.mean([not c.right for c in found["nothing"]])
    planted = np.mean([c.right for c in found["planted"]])
    exact = np.mean([c.exact for c in found["planted"]])
    shared, gains = upper.min() - lower.max(), np.mean(inside)
    return [
        _claim("UR10e: a payload at the flange and nothing else, from each log without load", right, "= 1", right == 1),
        _claim("UR10e: share of the difference that only the payload explains, least", share, ">= 0.8", share >= 0.8),
        _claim("UR10e: differences of its mass between pairs within their 95 % interval", np.mean(apart), ">= 0.9",
               np.mean(apart) >= 0.9),
        _claim("UR10e: width of the interval that all pairs share [kg]", shared, "> 0", shared > 0),
        _claim("UR10e: differences of drive gains between pairs within their 95 % interval", gains, ">= 0.9",
               gains >= 0.9),
        _claim("UR10e without load, other days and halves: false alarms", alarms, "<= 0.05", alarms <= 0.05),
        _claim("UR10e, planted in logs without load: right answer, or named in a tie", planted, ">= 0.9",
               planted >= 0.9),
        _claim("UR10e, planted in logs without load: right answer alone", exact, ">= 0.7", exact >= 0.7),
    ]  # fmt: skip


def _agreement(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Of all pairs of intervals: whether the middles differ by less than the half widths allow."""
    middle, half = (lower + upper) / 2, (upper - lower) / 2
    pairs = list(itertools.combinations(range(len(middle)), 2))
    return np.array([abs(middle[a] - middle[b]) <= np.hypot(half[a], half[b]) for a, b in pairs])


def _claim(what: str, measured: Any, wanted: str, holds: Any) -> dict[str, Any]:
    return {"what": what, "measured": float(measured), "wanted": wanted, "holds": bool(holds)}


def table(found: dict[str, Any]) -> str:
    lines = ["| simulated arm | runs | right |", "|---|--:|--:|"]
    for kind, cases in found["simulated"].items():
        lines.append(f"| {kind} | {len(cases)} | {sum(c.right for c in cases)} |")
    if "load" in found:
        lines += ["", f"UR10e, log without load beside {LOADED} ({LOAD} kg). Mass with the published drive gains,", ""]
        lines[-2] += " then true effort over recorded effort with the mass given."
        joints = list(next(iter(found["load"].values()))["gains"])
        lines += ["| log | mass [kg] | " + " | ".join(joints) + " |", "|---|--:|" + "--:|" * len(joints)]
        for name, row in found["load"].items():
            middle, half = sum(row["interval"]) / 2, (row["interval"][1] - row["interval"][0]) / 2
            cells = [_cell(*row["gains"][j]) for j in joints]
            lines.append(f"| {name} | {middle:.3f} +- {half:.3f} | " + " | ".join(cells) + " |")
        for title, cases in (("UR10e without load", found["nothing"]), ("UR10e, planted", found["planted"])):
            wrong = [f"{c.notes}: {c.found or 'nothing'}" for c in cases if not c.right]
            ties = sum(c.right and not c.exact for c in cases)
            lines += ["", f"{title}: {len(cases)} pairs, {len(cases) - len(wrong)} right, {ties} of these in a tie."]
            lines += [f"Wrong: {'; '.join(wrong)}." for _ in wrong[:1]]
    lines += ["", "| claim | measured | wanted | holds |", "|---|--:|---|---|"]
    for c in claims(found):
        lines.append(f"| {c['what']} | {c['measured']:.4g} | {c['wanted']} | {'yes' if c['holds'] else 'no'} |")
    return "\n".join(lines) + "\n"


def _cell(scale: float, lower: float, upper: float) -> str:
    return f"{scale:.3f} +- {(upper - lower) / 2:.3f}" if np.isfinite(lower) else "not determined"


def restored(kept: dict[str, Any]) -> dict[str, Any]:
    """What was found, from the kept JSON file."""

    def cases(rows: list) -> list[Case]:
        return [
            Case(p and tuple(p), [tuple(f) for f in found], n, true, (lower, upper), notes, [tuple(t) for t in rest[0]])
            for p, found, n, true, (lower, upper), notes, *rest in ([*row, []][:7] for row in rows)
        ]

    simulated = {kind: cases(rows) for kind, rows in kept["simulated"].items()}
    return {**kept, "simulated": simulated, "nothing": cases(kept["nothing"]), "planted": cases(kept["planted"])}


def kept_results() -> dict[str, Any]:
    return restored(json.loads((RESULTS / "what_changed.json").read_text()))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of the simulated arm, nothing written")
    parser.add_argument("--only", help=f"parts that are run, among {', '.join(PARTS)}; others are kept")
    parser.add_argument("--again", action="store_true", help="tables and claims of the results that are there")
    options = parser.parse_args(arguments)
    if options.again:
        found = kept_results()
    else:
        parts = tuple(PARTS) if options.only is None else tuple(options.only.split(","))
        unknown = [part for part in parts if part not in PARTS]
        if unknown:
            parser.error(f"--only: there is no part {unknown[0]}; there are {', '.join(PARTS)}")
        with jax.enable_x64(True):
            found = experiment(options.quick, parts)
    print(table(found))
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "what_changed.md").write_text(table(found))
        kept = {**found, "claims": claims(found)}
        (RESULTS / "what_changed.json").write_text(json.dumps(kept, indent=1))
    return found


if __name__ == "__main__":
    main()
