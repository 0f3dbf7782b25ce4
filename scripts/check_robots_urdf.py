"""Compare Knuckle with Pinocchio on URDF robots: python scripts/check_robots_urdf.py FOLDER [file ...]."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio

from knuckle import dynamics, kinematics
from knuckle.model.build import build
from knuckle.model.inertia import repaired
from knuckle.model.model import Model
from knuckle.model.report import LoadError
from knuckle.model.urdf import read
from knuckle.model.xml import parse

pin: Any = pinocchio  # its compiled names are unknown to type checkers

TOLERANCE = {"mass": 1e-9, "bias": 1e-9, "pose": 1e-9, "jacobian": 1e-9, "backward": 1e-10}
MOMENTS = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")
FRAMES_WITH_JACOBIAN = 3


def check_urdf(
    path: str | Path, *, floating: bool = False, states: int = 3, seed: int = 0, compiler: Callable = jax.jit
) -> dict:
    """Largest errors against Pinocchio over random states, each relative to its largest term.

    `compiler` is what our functions go through.
    Keys: file, nv, mass, links, mended (links whose inertia had to be mended), mass_matrix, bias, pose, jacobian,
    backward (None where the mass matrix is singular: `note` says so), seconds.
    """
    start = time.perf_counter()
    root = parse(path).root
    if floating:
        _rename_world(root)
    mended = _mended_links(path)
    _mend(root, mended)
    _strip_numbers(root)
    text = ElementTree.tostring(root, "unicode")
    description, _ = read(text, floating=floating or None, strict=False)
    model = build(description)
    reference = Reference.of(text, model, floating)
    errors = _errors(model, reference, np.random.default_rng(seed), states, compiler)
    result = {"file": Path(path).name, "floating": floating, "nv": model.nv, "links": len(model.link_names)}
    result |= {"mass": float(sum(link.mass for link in description.links)), "mended": mended, "note": ""}
    if errors["backward"] is None:
        result["note"] = "mass matrix is singular: some motion meets no inertia"
    return result | errors | {"seconds": time.perf_counter() - start}


def passes(result: dict) -> bool:
    """Whether every error of a result is within its tolerance."""
    keys = {"mass_matrix": "mass", "bias": "bias", "pose": "pose", "jacobian": "jacobian", "backward": "backward"}
    return all(result[key] is None or result[key] < TOLERANCE[limit] for key, limit in keys.items())


def can_float(path: str | Path) -> bool:
    """Whether the file leaves the base fixed, so that it can be freed."""
    return not any(joint.get("type") == "floating" for joint in parse(path).root.findall("joint"))


def _rename_world(root: ElementTree.Element) -> None:
    """Pinocchio frees the root link whatever its name; ours takes `world` for the ground."""
    for element in root.iter():
        for key, value in element.attrib.items():
            if value == "world" and key in ("name", "link"):
                element.set(key, "root_of_the_file")


def _mended_links(path: str | Path) -> list[str]:
    try:
        read(path)
    except LoadError as error:
        return [p.element.split("'")[1] for p in error.problems if p.element.startswith("link")]
    return []


def _mend(root: ElementTree.Element, names: list[str]) -> None:
    """Write mended inertia into the tree, so that both engines read the same numbers."""
    for link in root.findall("link"):
        inertia, mass = link.find("inertial/inertia"), link.find("inertial/mass")
        if link.get("name") in names and inertia is not None and mass is not None:
            moment = np.array([float(inertia.get(key, "nan")) for key in MOMENTS])
            for key in ("iyx", "izx", "izy"):
                inertia.attrib.pop(key, None)  # some files state both halves
            for key, value in zip(MOMENTS, repaired(float(mass.get("value", "nan")), moment), strict=True):
                inertia.set(key, repr(float(value)))


def _strip_numbers(root: ElementTree.Element) -> None:
    """urdfdom, which reads for Pinocchio, drops a link's moments where one has a space behind it, as in two files."""
    for inertia in root.iter("inertia"):
        inertia.attrib.update({key: value.strip() for key, value in inertia.attrib.items()})


@dataclass
class Reference:
    """A Pinocchio model, with the way from our coordinates and velocities to its own."""

    ours: Model
    model: Any
    data: Any
    joints: list[tuple[str, int, int, Any]]  # kind, our q, our v, its joint

    @staticmethod
    def of(text: str, ours: Model, floating: bool) -> Reference:
        model = pin.buildModelFromXML(text, pin.JointModelFreeFlyer()) if floating else pin.buildModelFromXML(text)
        topology = ours.topology
        joints = []
        for link, name in enumerate(topology.joint_names):
            theirs = "root_joint" if floating and topology.parent[link] < 0 and topology.kind[link] == "free" else name
            if not model.existJointName(theirs):
                raise ValueError(f"Pinocchio has no joint {theirs!r}")
            joint = model.joints[model.getJointId(theirs)]
            joints.append((topology.kind[link], int(topology.q_start[link]), int(topology.v_start[link]), joint))
        if model.nv != ours.nv:
            raise ValueError(f"Pinocchio has {model.nv} freedoms, ours {ours.nv}")
        return Reference(ours, model, model.createData(), joints)

    def coordinates(self, q: np.ndarray) -> np.ndarray:
        """Angles of unbounded joints as (cos, sin), quaternions xyzw."""
        theirs = pin.neutral(self.model)
        for kind, at, _, joint in self.joints:
            if kind == "free":
                value = np.concatenate([q[at : at + 3], q[at + 4 : at + 7], q[at + 3 : at + 4]])
            elif kind == "planar":
                value = np.array([q[at], q[at + 1], np.cos(q[at + 2]), np.sin(q[at + 2])])
            else:
                value = q[at : at + 1] if joint.nq == 1 else np.array([np.cos(q[at]), np.sin(q[at])])
            theirs[joint.idx_q : joint.idx_q + joint.nq] = value
        return theirs

    def velocity_map(self, q: np.ndarray) -> np.ndarray:
        """T with v_theirs = T v_ours: its free and planar joints have linear velocity in the child's axes."""
        T = np.zeros((self.model.nv, self.model.nv))
        for kind, at, v, joint in self.joints:
            n = joint.nv
            block = np.eye(n)
            if kind == "free":
                block[:3, :3] = pin.Quaternion(np.roll(q[at + 3 : at + 7], -1)).toRotationMatrix().T
            elif kind == "planar":
                c, s = np.cos(q[at + 2]), np.sin(q[at + 2])
                block[:2, :2] = [[c, s], [-s, c]]
            T[joint.idx_v : joint.idx_v + n, v : v + n] = block
        return T

    def acceleration_shift(self, v: np.ndarray) -> np.ndarray:
        """Its acceleration where ours is zero: d(R^T v)/dt = -omega x R^T v."""
        shift = np.zeros(self.model.nv)
        for kind, _, _, joint in self.joints:
            mine = v[joint.idx_v : joint.idx_v + joint.nv]
            if kind == "free":
                shift[joint.idx_v : joint.idx_v + 3] = -np.cross(mine[3:], mine[:3])
            elif kind == "planar":
                shift[joint.idx_v : joint.idx_v + 2] = -mine[2] * np.array([-mine[1], mine[0]])
        return shift

    def dynamics(self, q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mass matrix and bias force in our velocities."""
        at, T = self.coordinates(q), self.velocity_map(q)
        M = pin.crba(self.model, self.data, at)
        M = np.triu(M) + np.triu(M, 1).T
        v = T @ qd
        bias = pin.rnea(self.model, self.data, at, v, self.acceleration_shift(v))
        return T.T @ M @ T, T.T @ bias

    def pose(self, name: str) -> Any:
        return self.data.oMf[self.model.getFrameId(name, pin.FrameType.BODY)]

    def jacobian(self, q: np.ndarray, name: str) -> np.ndarray:
        """[angular; linear] in world axes, for our velocities."""
        frame = self.model.getFrameId(name, pin.FrameType.BODY)
        J = pin.computeFrameJacobian(
            self.model, self.data, self.coordinates(q), frame, pin.ReferenceFrame.LOCAL_WORLD_ALIGNED
        )
        J = J.reshape(6, -1)  # one freedom comes without its axis
        return np.concatenate([J[3:], J[:3]]) @ self.velocity_map(q)


def random_state(model: Model, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Angles up to half a turn, offsets of about a metre, any rotation, speeds of about one."""
    topology = model.topology
    q = random.uniform(-np.pi, np.pi, model.nq)
    for link, kind in enumerate(topology.kind):
        at = int(topology.q_start[link])
        if kind in ("free", "planar"):
            q[at : at + 2] = random.normal(size=2)
        if kind == "free":
            q[at + 2] = random.normal()
            q[at + 3 : at + 7] = (quaternion := random.normal(size=4)) / np.linalg.norm(quaternion)
    return q, random.normal(size=model.nv)


def _ours(model: Model, names: list[str], compiler: Callable):
    """One compiled function for all that is compared."""

    def evaluate(q, qd, tau):
        jacobians = [kinematics.jacobian(model, q, name) for name in names]
        poses = [kinematics.poses(model, q), *([kinematics.frame_poses(model, q)] if model.frames.names else [])]
        placed = tuple(jnp.concatenate(parts) for parts in zip(*poses, strict=True))
        qdd = dynamics.aba(model, q, qd, tau)
        return dynamics.crba(model, q), dynamics.bias_force(model, q, qd), placed, jnp.stack(jacobians), qdd

    return compiler(evaluate)


def _errors(
    model: Model, reference: Reference, random: np.random.Generator, states: int, compiler: Callable
) -> dict[str, float | None]:
    bodies = [n for n in (*model.link_names, *model.frames.names) if reference.model.existBodyName(n)]
    picked = [bodies[k] for k in np.unique(np.linspace(0, len(bodies) - 1, FRAMES_WITH_JACOBIAN).astype(int))]
    picked = list(dict.fromkeys([model.link_names[-1], *picked]))
    evaluate = _ours(model, picked, compiler)
    worst: dict[str, float] = dict.fromkeys(("mass_matrix", "bias", "pose", "jacobian", "backward"), 0.0)
    singular = False
    for _ in range(states):
        q, qd = random_state(model, random)
        tau = random.normal(size=model.nv)
        M, bias, placed, jacobians, qdd = jax.tree.map(np.asarray, evaluate(q, qd, tau))
        M_ref, bias_ref = reference.dynamics(q, qd)
        pin.framesForwardKinematics(reference.model, reference.data, reference.coordinates(q))
        found = {"mass_matrix": _mass_error(M, M_ref), "bias": _relative(bias, bias_ref)}
        found["pose"] = _pose_error(model, reference, placed, bodies)
        found["jacobian"] = max(
            _relative(J, reference.jacobian(q, name)) for J, name in zip(jacobians, picked, strict=True)
        )
        singular |= _is_singular(M_ref)
        found["backward"] = 0.0 if singular else _backward_error(M_ref, bias_ref, tau, qdd)
        worst = {key: float(np.fmax(worst[key], _number(value))) for key, value in found.items()}
    return {**worst, "backward": None if singular else worst["backward"]}


def _number(value: float) -> float:
    """NaN counts as infinitely wrong."""
    return float(value) if np.isfinite(value) else np.inf


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours - theirs)) / max(np.max(np.abs(theirs)), np.finfo(float).tiny))


def _mass_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Entry by entry against sqrt(M_ii M_jj), so that light fingers count as much as heavy arms."""
    diagonal = np.sqrt(np.abs(np.diag(theirs)))
    scale = np.outer(diagonal, diagonal)
    return float(np.max(np.abs(ours - theirs) / np.where(scale > 0, scale, max(scale.max(), 1e-300))))


def _pose_error(model: Model, reference: Reference, placed, bodies: list[str]) -> float:
    names = (*model.link_names, *model.frames.names)
    reach = max(1.0, float(np.abs(placed[1]).max()))
    errors = [0.0]
    for R, p, name in zip(*placed, names, strict=True):
        if name in bodies:
            theirs = reference.pose(name)
            errors += [np.abs(R - theirs.rotation).max(), np.abs(p - theirs.translation).max() / reach]
    return float(max(errors))


def _is_singular(M: np.ndarray) -> bool:
    """Whether the matrix, scaled to a unit diagonal, has no inverse in float64."""
    diagonal = np.sqrt(np.diag(M))
    return bool(np.any(diagonal == 0)) or bool(np.linalg.eigvalsh(M / np.outer(diagonal, diagonal))[0] < 1e-14)


def _backward_error(M: np.ndarray, bias: np.ndarray, tau: np.ndarray, qdd: np.ndarray) -> float:
    """|M qdd + bias - tau| over the sum of the sizes of its terms, row by row; M and bias are Pinocchio's."""
    terms = np.abs(M) @ np.abs(qdd) + np.abs(bias) + np.abs(tau)
    return float(np.max(np.abs(M @ qdd + bias - tau) / terms))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="a folder of URDF files, or files")
    parser.add_argument("--states", type=int, default=3)
    arguments = parser.parse_args()
    files = [f for p in arguments.paths for f in (sorted(p.glob("*.urdf")) if p.is_dir() else [p])]
    failed = []
    for file in files:
        for floating in (False, True) if can_float(file) else (False,):
            result = check_urdf(file, floating=floating, states=arguments.states)
            if not passes(result):
                failed.append((file.name, floating))
            numbers = [result[k] for k in ("mass_matrix", "bias", "pose", "jacobian", "backward")]
            listed = " ".join("   -   " if x is None else f"{x:7.0e}" for x in numbers)
            verdict = "ok  " if passes(result) else "FAIL"
            print(f"{verdict} {listed} nv={result['nv']:<3} {result['seconds']:5.1f}s {file.name}", end="")
            print(" (floating)" if floating else "", result["note"], flush=True)
    print(f"{len(files)} files, {len(failed)} failures: mass matrix, bias, pose, jacobian, backward error")
    return 1 if failed else 0


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    sys.exit(main())
