"""Whether a value is traced changes no result: every option and every leaf of a model, constant against traced.

python scripts/check_traced.py [--quick] [--scene NAME] [--resume] [--output FILE]

A step is taken three ways: with all values as constants (outside of any transformation), with all of them as arguments
of jax.jit, and by rollout(native=True). Each leaf of the model, of the contact model and of the blueprint, and each
option, is set to another value and, where that means something, to zero or infinity. Steps agree to 1e-12 without
contact and to 1e-9 with it, relative to 1 + the largest value.

Where a value makes constraints contradict each other (`Outcome.check` raises), impulses are the contradiction over R:
up to 1e8 N s, of either sign, which cancel. A velocity is then a sum of terms as large as the impulses, with a rounding
of about n eps |impulse|; an impulse, which is the slack over R, has that rounding relative to the slack. Variants of
this kind, and only those, may differ by as much, with n = 16. Writes benchmarks/results/traced.json after each scene;
--resume keeps the scenes that it has, if it was written by the same source.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.contact import Compliant, Impulse, InteriorPoint
from knuckle.contact.outcome import GIVES_WAY
from knuckle.model.joints import plane_axes
from knuckle.simulate import advance, as_arrays, begin, opened

ROOT = Path(__file__).parents[1]
WITHOUT, WITH = 1e-12, 1e-9  # agreement without and with contact
ROUNDED = 16 * np.finfo(float).eps  # of the largest impulse, where constraints contradict
IMPULSES = ("impulse", "limit", "equality", "friction")
OUTCOME = (*IMPULSES, "converged", "slack", "velocity", "violation")
ROD = (1 / 12, 1 / 12, 1e-3)
MAY_BE_ZERO = (
    *("stiffness", "damping", "armature", "friction", "gravity", "gain", "bias", "gear", "com", "anchor", "effort"),
    *("restitution", "alpha", "beta", "mixing", "correction", "correction_speed", "recovery_speed", "dissipation"),
    *("torque_scale", "static_friction", "control", "wrench", "polynomial"),
)
UNLIMITED = {
    "lower": -np.inf, "upper": np.inf, "effort": np.inf, "force_lower": -np.inf, "force_upper": np.inf,
    "control_lower": -np.inf, "control_upper": np.inf,
}  # fmt: skip


class Scene(NamedTuple):
    """What a step is taken of; all but the integrator is traced."""

    model: kn.Model
    state: kn.State
    contact: Any = None
    control: Any = None
    wrench: Any = None
    blueprint: Any = None
    dt: Any = 2e-3
    time: Any = 0.3
    integrator: Any = kn.SemiImplicitEuler()


def take_step(scene: Scene) -> dict[str, Any]:
    """The state after a step and the impulses in it."""
    options = {name: getattr(scene, name) for name in ("dt", "integrator", "contact", "wrench")}
    state = begin(scene.model, as_arrays(scene.state), scene.blueprint, **options)
    taps = opened(scene.blueprint, state, scene.time)
    after, outcome = advance(scene.model, state, scene.control, taps=taps, **options)
    return results(after.q, after.qd, outcome) | {"warm start": after.impulse}


def results(q, qd, outcome) -> dict[str, Any]:
    found = {"q": q, "qd": qd}
    if outcome is not None:
        found |= {name: getattr(outcome, name) for name in OUTCOME}
    return found


def take_native_step(scene: Scene) -> dict[str, Any]:
    options = {name: getattr(scene, name) for name in ("dt", "integrator", "contact", "wrench", "blueprint", "time")}
    run = kn.rollout(scene.model, scene.state, scene.control, steps=1, native=True, **options)
    return {name: None if x is None else x[0] for name, x in results(run.q, run.qd, run.contact).items()}


def mechanism() -> Scene:
    """Every kind of joint, springs, damping, friction, rotors, and every kind of actuator; no contact."""
    rubbing = {"stiffness": 3.0, "damping": 0.4, "armature": 0.05, "friction": 0.3}
    links = [
        kn.Link("base", joints=kn.free(damping=0.1), mass=2.0, com=(0.02, 0.01, 0), inertia=(0.2, 0.3, 0.25)),
        kn.Link(
            "a", "base", kn.revolute("y", lower=-1.0, **rubbing), (0.3, 0, 0), mass=1.0, com=(0, 0, -0.3), inertia=ROD
        ),
        kn.Link("b", "a", kn.ball(upper=1.0, **rubbing), (0, 0, -0.6), mass=0.8, com=(0, 0.1, -0.2), inertia=ROD),
        kn.Link(
            "c", "base", kn.prismatic("x", effort=3.0, **rubbing), (0, 0.3, 0), mass=0.7, com=(0.1, 0, 0), inertia=ROD
        ),
        kn.Link("d", "c", kn.planar("z", **rubbing), mass=0.5, com=(0.1, 0, 0), inertia=ROD),
    ]
    actuators = [
        kn.motor("a_joint", 2.0, control_lower=-1.0, control_upper=1.0),
        kn.position_servo("c_joint", 30.0, 2.0, force_lower=-4.0, force_upper=4.0),
        kn.velocity_servo("a_joint", 1.5),
    ]
    model = kn.build(links, actuators=actuators)
    rng = np.random.default_rng(0)
    q = np.asarray(kn.retract(model, jnp.asarray(model.reference), 0.3 * rng.normal(size=model.nv)))
    network = kn.neural.MLP((model.nv, 4, model.nv), key=jax.random.key(1))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(network, inputs=("qd",))})
    wrench = 0.5 * rng.normal(size=(len(links), 6))
    return Scene(model, kn.State(q, rng.normal(size=model.nv)), None, np.array([0.4, 0.2, -0.3]), wrench, blueprint)


def constrained() -> Scene:
    """Limits that hold and that do not, dry friction, a limited ball joint, and equalities of each kind."""
    links = [
        kn.Link("a", joints=kn.revolute("y", lower=0.25, friction=0.2), mass=1.0, com=(0, 0, -0.5), inertia=ROD),
        kn.Link("b", "a", kn.revolute("x", upper=0.1), (0, 0, -1), mass=1.0, com=(0, 0, -0.5), inertia=ROD),
        kn.Link("c", joints=kn.ball(upper=0.4), position=(1, 0, 0), mass=1.0, com=(0, 0, -0.5), inertia=ROD),
        kn.Link("d", joints=kn.prismatic("x"), position=(2, 0, 0), mass=1.0, inertia=ROD),
        kn.Link("e", joints=kn.free(), position=(0, 0, 0), mass=1.0, inertia=ROD),
        kn.Link("f", joints=kn.free(), position=(0, 0, 0), mass=1.0, inertia=ROD),
    ]
    equalities = [
        kn.Mimic("a_joint", "d_joint", (0.05, 0.8, 0.1, 0, 0)),
        kn.Connect("e", "c", (0.1, 0, 0), (0, 0, -1)),
        kn.Weld("f", "e", (0, 0, 0.5)),
    ]
    model = kn.build(links, equalities=equalities)
    rng = np.random.default_rng(1)
    turn = np.array([np.cos(0.2), np.sin(0.2), 0, 0])
    q = np.concatenate([[0.2501, 0.0999], turn, [0.2], [1, 0.1, -1.1, 1, 0, 0, 0], [1, 0.1, -0.5, 1, 0, 0, 0]])
    return Scene(model, kn.State(q, 0.5 * rng.normal(size=model.nv)), Impulse())


def touching(contact: Any) -> Scene:
    """A capsule and two balls, each on the ground or on another; limits are far."""
    shapes = {"friction": (0.6,)}
    links = [
        kn.Link("rod", joints=kn.free(), mass=1.0, shapes=kn.shapes.capsule(0.1, 0.3, **shapes)),
        kn.Link("ball", joints=kn.free(), mass=0.5, shapes=kn.shapes.sphere(0.1, **shapes)),
        kn.Link("post", joints=kn.revolute("y"), position=(3, 0, 0.5), mass=0.5, com=(0, 0, -0.2),
                inertia=ROD, shapes=kn.shapes.sphere(0.1, position=(0, 0, -0.4), **shapes)),
    ]  # fmt: skip
    model = kn.build(links, world_shapes=[kn.shapes.plane(friction=(0.4,))], actuators=[kn.motor("post_joint")])
    along = np.array([np.cos(np.pi / 4), 0, np.sin(np.pi / 4) * 0.98, 0.05])
    q = np.concatenate([[0, 0, 0.1], along / np.linalg.norm(along), [1, 0, 0.0995], [1.0, 0, 0, 0], [0.1]])
    qd = np.array([0.5, 0.1, -0.6, 0.3, 0.2, 0.4, 1.0, 0, -0.3, 0, 1, 2, -0.7])
    return Scene(model, kn.State(q, qd), contact, np.array([0.3]))


def planar(contact: Any) -> Scene:
    """A box that slides in an upright plane on the ground and a hinged ball that hits it: one tangent is enough."""
    wall = {"friction": (0.6,)}
    links = [
        kn.Link("box", joints=kn.planar("y"), mass=1.0, shapes=kn.shapes.sphere(0.2, **wall)),
        kn.Link("arm", joints=kn.revolute("y", lower=-1.0, friction=0.1), position=(1, 0, 0.7), mass=0.5,
                com=(0, 0, -0.3), inertia=ROD, shapes=kn.shapes.sphere(0.1, position=(0, 0, -0.6), **wall)),
        kn.Link("free", joints=kn.planar("y"), mass=0.4, inertia=ROD, com=(0.05, 0, 0)),
    ]  # fmt: skip
    model = kn.build(
        links,
        world_shapes=[kn.shapes.plane(friction=(0.4,))],
        equalities=[kn.Connect("free", "arm", (0.1, 0, 0), (0, 0, -0.3))],
    )
    first, second = (np.asarray(x) for x in plane_axes(jnp.asarray([0.0, 1.0, 0.0])))
    height = second[2] if abs(second[2]) > 0.5 else first[2]
    up, forward = (1, 0) if abs(second[2]) > 0.5 else (0, 1)
    box, free = np.zeros(3), np.zeros(3)
    box[up], free[up] = 0.199 / height, 0.4 / height
    free[forward] = (first, second)[forward][0] * 0.9
    qd = np.array([0.4, 0.3, 2.0, 1.0, 0.1, -0.2, 0.5])
    qd[up] = -0.5 / height
    return Scene(model, kn.State(np.concatenate([box, [0.05], free]), qd), contact)


def piled(contact: Any) -> Scene:
    """Four balls in a row that touch on the ground and a hinged one that hits the last: links coupled as a graph."""
    shape = kn.shapes.sphere(0.1, friction=(0.6,))
    hand = kn.shapes.sphere(0.1, position=(0, 0, -0.4), friction=(0.5,))
    links = [kn.Link(f"ball{k}", joints=kn.free(), mass=0.5 + 0.2 * k, shapes=shape) for k in range(4)]
    links.append(kn.Link("hand", joints=kn.revolute("y", lower=-0.2, friction=0.05), position=(0.79, 0, 0.5),
                         mass=0.5, com=(0, 0, -0.2), inertia=ROD, shapes=hand))  # fmt: skip
    model = kn.build(links, world_shapes=[kn.shapes.plane(friction=(0.4,))], actuators=[kn.motor("hand_joint")])
    places = [[0.1995 * k, 0.01 * (k % 2), 0.0998, 1, 0, 0, 0] for k in range(4)]
    speeds = np.random.default_rng(3).normal(size=24) * np.tile([0.2, 0.2, 0.2, 1, 1, 1], 4)
    return Scene(model, kn.State(np.append(places, 0.03), np.append(speeds, 1.2)), contact, np.array([0.3]))


CONTACTS = {
    "Impulse": Impulse(),
    "Impulse(restitution)": Impulse(restitution=0.5, friction=0.3),
    "Impulse(passive)": Impulse(restitution=0.6, restitution_law="passive"),
    "Impulse(no time of impact)": Impulse(restitution=0.5, time_of_impact=False),
    "Impulse(pyramid)": Impulse(pyramid=True),
    "Impulse(smoothing)": Impulse(smoothing=0.2),
    "Impulse(smooth derivative)": Impulse(smoothing=0.2, smooth="derivative"),
    "Impulse(most_contacts)": Impulse(most_contacts=3, self_collision=True),
    "Compliant": Compliant(),
    "Compliant(substeps)": Compliant(substeps=4, friction=0.3, static_friction=0.5),
    "InteriorPoint": InteriorPoint(),
    "InteriorPoint(8)": InteriorPoint(directions=8, restitution=0.3),
    "InteriorPoint(smoothing)": InteriorPoint(smoothing=0.2),
}


def scenes() -> dict[str, Scene]:
    free = mechanism()
    found = {f"mechanism, {type(i).__name__}": free._replace(integrator=i)
             for i in (kn.SemiImplicitEuler(), kn.ExplicitEuler(), kn.Implicit(), kn.RK4())}  # fmt: skip
    held = constrained()
    solvers = ("Impulse", "Compliant", "InteriorPoint", "InteriorPoint(smoothing)")
    found |= {f"constrained, {name}": held._replace(contact=CONTACTS[name]) for name in solvers}
    found["constrained, Implicit"] = held._replace(integrator=kn.Implicit())
    found |= {f"touching, {name}": touching(contact) for name, contact in CONTACTS.items()}
    found |= {f"planar, {name}": planar(contact) for name, contact in CONTACTS.items()}
    graph = ("Impulse", "Impulse(restitution)", "Impulse(smoothing)", "Compliant")
    return found | {f"piled, {name}": piled(CONTACTS[name]) for name in graph}


def variants(scene: Scene, quick: bool, wide: bool) -> Iterator[tuple[str, Scene]]:
    """The scene itself, and with each of its leaves changed; if it is not wide, those of the contact model and dt."""
    yield "as built", scene
    if quick:
        return
    moving = scene._replace(state=None, integrator=None)
    leaves, structure = jax.tree_util.tree_flatten_with_path(moving)
    for number, (path, leaf) in enumerate(leaves):
        value = np.asarray(leaf)
        if value.dtype.kind != "f" or not value.size:
            continue
        place = jax.tree_util.keystr(path)
        name = place.split(".")[-1].strip("'[]")
        if not wide and not place.startswith((".contact", ".dt")):
            continue
        for what, changed in changes(name, value):
            values = [x for _, x in leaves]
            values[number] = changed if np.ndim(leaf) else float(changed)
            other = jax.tree.unflatten(structure, values)
            yield f"{place} {what}", other._replace(state=scene.state, integrator=scene.integrator)


def changes(name: str, value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    wave = 1 + 0.05 * np.cos(1.0 + np.arange(value.size)).reshape(value.shape)
    if name in UNLIMITED:
        sign = np.sign(UNLIMITED[name])
        yield "set", np.where(np.isfinite(value), 0.9 * value, sign * (0.05 + 0.3 * np.abs(wave)))
        yield "lifted", np.full_like(value, UNLIMITED[name])
        return
    yield "changed", value * wave + (0.01 if name in ("friction", "restitution", "mixing", "margin") else 0.0)
    if name in MAY_BE_ZERO:
        yield "zero", np.zeros_like(value)


class Compared(NamedTuple):
    scene: str
    variant: str
    way: str  # jax.jit, or native
    quantity: str
    error: float  # over 1 + the largest value


def compare(name: str, scene: Scene, quick: bool) -> Iterator[Compared]:
    traced = jax.jit(lambda moving: take_step(moving._replace(integrator=scene.integrator)))
    wide = scene.contact is None or name in [
        f"{kind}, Impulse" for kind in ("constrained", "touching", "planar", "piled")
    ]
    for variant, changed in variants(scene, quick, wide):
        constant = take_step(changed)
        for way, other in (
            ("jax.jit", traced(changed._replace(integrator=None))),
            ("native", take_native_step(changed)),
        ):
            for quantity, x in other.items():
                if x is not None:
                    off = difference(constant[quantity], x, rounding(constant, quantity))
                    yield Compared(name, variant, way, quantity, off)


def rounding(step: dict[str, Any], quantity: str) -> float:
    """What a quantity may differ by if constraints contradict; else 0."""
    slack = float(np.max(np.asarray(step.get("slack", 0.0)), initial=0.0))
    if not slack > GIVES_WAY:
        return 0.0
    largest = max(float(np.max(np.abs(np.asarray(step[name])), initial=0.0)) for name in IMPULSES)
    return ROUNDED * largest * (largest / slack if quantity in (*IMPULSES, "warm start") else 1.0)


def difference(a, b, rounding: float = 0.0) -> float:
    """NaN where values are NaN in both counts as equal; shapes that differ are infinitely far apart."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.shape != b.shape:
        return np.inf
    both = np.isnan(a) & np.isnan(b)
    off = np.where(both, 0.0, np.abs(a - b))
    scale = max(1 + np.max(np.abs(np.where(np.isfinite(a), a, 0.0)), initial=0.0), rounding / WITH)
    return float(np.nan_to_num(np.max(off, initial=0.0), nan=np.inf, posinf=np.inf)) / scale


def claims(found: list[Compared], wanted: dict[str, float]) -> list[dict[str, Any]]:
    made = []
    for name, limit in wanted.items():
        for way in ("jax.jit", "native"):
            own = [c for c in found if c.scene == name and c.way == way]
            worst = max(own, key=lambda c: c.error)
            made.append({
                "what": f"{name}: constant against {way}, {len({c.variant for c in own})} variants",
                "measured": worst.error, "worst": f"{worst.quantity}, {worst.variant}",
                "wanted": limit, "holds": bool(worst.error <= limit),
            })  # fmt: skip
    return made


def source() -> str:
    """A checksum of this script and of all code that it checks."""
    files = [Path(__file__), *sorted((ROOT / "knuckle").rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def kept_claims(path: Path) -> list[dict[str, Any]]:
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("source") != source():
        raise SystemExit(f"{path} is of other code: run without --resume")
    return kept["claims"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="scenes only as they are built")
    parser.add_argument("--scene", nargs="*", default=[""], help="only scenes whose name holds one of these")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "traced.json")
    parser.add_argument("--resume", action="store_true", help="keep scenes that the output has")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    with tempfile.TemporaryDirectory() as cache:
        share_programs(cache)
        run(given)


def share_programs(cache: str) -> None:
    """Equal programs are compiled once: outside of jax.jit the loops of every step are new functions to JAX."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def run(given: argparse.Namespace) -> None:
    made = kept_claims(given.output) if given.resume else []
    for name, scene in scenes().items():
        if not any(part in name for part in given.scene) or any(c["what"].startswith(f"{name}: ") for c in made):
            continue
        start = time.perf_counter()
        found = list(compare(name, scene, given.quick))
        jax.clear_caches()  # programs are many: a process can map so much code and no more
        for claim in claims(found, {name: WITHOUT if scene.contact is None else WITH}):
            made.append(claim)
            verdict = "ok  " if claim["holds"] else "FAIL"
            print(verdict, claim["what"], f"{claim['measured']:.1e}", claim["worst"], flush=True)
        print(f"{time.perf_counter() - start:6.0f} s", flush=True)
        given.output.write_text(json.dumps({"source": source(), "claims": made}, indent=1) + "\n")
    failed = [claim for claim in made if not claim["holds"]]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(made)} claims do not hold")


if __name__ == "__main__":
    main()
