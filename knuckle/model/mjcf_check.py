"""What an MJCF model holds that Knuckle cannot: refused if it changes motion, noted if it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import mujoco
import numpy as np
from mujoco import mjtBias, mjtDisableBit, mjtDyn, mjtEnableBit, mjtEq, mjtGain, mjtGeom, mjtJoint, mjtTrn

from knuckle.model.report import Omission

EQUALITIES = (mjtEq.mjEQ_CONNECT, mjtEq.mjEQ_WELD, mjtEq.mjEQ_JOINT)
TRANSMISSIONS = {
    mjtTrn.mjTRN_SLIDERCRANK: "slider-crank",
    mjtTrn.mjTRN_TENDON: "tendon",
    mjtTrn.mjTRN_SITE: "site",
    mjtTrn.mjTRN_BODY: "body (adhesion)",
    mjtTrn.mjTRN_SO3: "orientation",
}
STANDARD = {"solref": (0.02, 1), "solimp": (0.9, 0.95, 0.001, 0.5, 2), "solmix": 1}
SOFTNESS = (
    *(f"geom_{setting}" for setting in ("solref", "solimp")),
    *(f"jnt_{setting}" for setting in ("solref", "solimp", "margin")),
    *(f"{kind}_{setting}" for kind in ("dof", "eq") for setting in ("solref", "solimp")),
)
FLAGS_APPLIED = {
    mjtDisableBit.mjDSBL_GRAVITY: "gravity is zero",
    mjtDisableBit.mjDSBL_SPRING: "joint springs are left out",
    mjtDisableBit.mjDSBL_DAMPER: "joint damping is left out",
    mjtDisableBit.mjDSBL_FRICTIONLOSS: "joint friction is left out",
    mjtDisableBit.mjDSBL_LIMIT: "joint limits are left out",
    mjtDisableBit.mjDSBL_EQUALITY: "equalities are inactive",
    mjtDisableBit.mjDSBL_CONTACT: "no shape can touch another",
    mjtDisableBit.mjDSBL_CONSTRAINT: "limits, friction, equalities and contact are off",
    mjtDisableBit.mjDSBL_CLAMPCTRL: "controls have no limits",
    mjtDisableBit.mjDSBL_ACTUATION: "actuators have no force",
}


@dataclass
class Source:
    """A compiled MJCF model and the elements it was compiled from, for names and lines."""

    model: mujoco.MjModel
    spec: mujoco.MjSpec
    _elements: dict[str, dict[int, object]] = field(default_factory=dict)

    def _element(self, kind: str, index: int):
        if kind not in self._elements:
            self._elements[kind] = {e.id: e for e in getattr(self.spec, kind)}
        return self._elements[kind].get(index)

    def report(self, kind: str, index: int, reason: str) -> Omission:
        """Name, number and line of an element; `kind` is the list that MjSpec keeps it in."""
        element = self._element(kind, index)
        word = {"bodies": "body", "equalities": "equality", "flexes": "flex"}.get(kind, kind[:-1])
        name = getattr(element, "name", "")
        return Omission(f"{word} {name!r}" if name else f"{word} number {index}", reason, line_of_info(element))


def line_of_info(element: object) -> int | None:
    """The line that MuJoCo notes down for an element."""
    found = re.search(r"line (\d+)", getattr(element, "info", "") or "")
    return int(found[1]) if found else None


def disabled(model: mujoco.MjModel, *flags: mjtDisableBit) -> bool:
    """Whether any of these parts of the simulation is switched off in the file."""
    return any(model.opt.disableflags & int(flag) for flag in flags)


def refusals(source: Source) -> list[Omission]:
    """Everything that would make the motion differ from MuJoCo's if it were left out."""
    checks: Sequence[Callable[[Source], Iterable[Omission]]] = (
        _medium,
        _bodies,
        _joints,
        _geoms,
        _whole_kinds,
        _pairs,
        _equalities,
        _actuators,
    )
    return [problem for check in checks for problem in check(source)]


def _medium(source: Source) -> Iterable[Omission]:
    option = source.model.opt
    if option.density > 0 or option.viscosity > 0:
        found = f"density {option.density:g} kg/m^3, viscosity {option.viscosity:g} Pa s"
        yield Omission("option", f"forces of a surrounding fluid are not modelled ({found})")


def _bodies(source: Source) -> Iterable[Omission]:
    model = source.model
    for i in range(1, model.nbody):
        if model.body_gravcomp[i] != 0:
            yield source.report(
                "bodies", i, f"gravity compensation is not modelled (gravcomp {model.body_gravcomp[i]:g})"
            )
        if model.body_plugin[i] >= 0:
            yield source.report("bodies", i, "plugins are not modelled")


def _joints(source: Source) -> Iterable[Omission]:
    model = source.model
    for i in range(model.njnt):
        dof = model.jnt_dofadr[i]
        if np.any(model.jnt_stiffnesspoly[i]):
            yield source.report("joints", i, "springs are linear here, this one has a polynomial stiffness")
        if np.any(model.dof_dampingpoly[dof]):
            yield source.report("joints", i, "damping is linear here, this one is a polynomial")
        low, high = model.jnt_actfrcrange[i]
        if model.jnt_actfrclimited[i] and low != -high:
            yield source.report("joints", i, f"actuator force range must be symmetric, it is {low:g} to {high:g}")


def _geoms(source: Source) -> Iterable[Omission]:
    model = source.model
    kinds = {mjtGeom.mjGEOM_HFIELD: "height fields", mjtGeom.mjGEOM_SDF: "signed distance fields"}
    for i in range(model.ngeom):
        kind = kinds.get(mjtGeom(model.geom_type[i]))
        if kind and (model.geom_contype[i] or model.geom_conaffinity[i]):
            yield source.report("geoms", i, f"{kind} are not among the shapes here")


def _whole_kinds(source: Source) -> Iterable[Omission]:
    model = source.model
    for kind, count, reason in (
        ("tendons", model.ntendon, "tendons are not modelled"),
        ("flexes", model.nflex, "flexible bodies are not modelled"),
    ):
        for i in range(count):
            yield source.report(kind, i, reason)


def _pairs(source: Source) -> Iterable[Omission]:
    for i in range(source.model.npair):
        fault = pair_fault(source.model, i)
        if fault:
            yield source.report("pairs", i, fault)


def pair_fault(model: mujoco.MjModel, i: int) -> str | None:
    """Why a contact pair cannot be kept; None if it can."""
    first, second, _, roll_first, roll_second = model.pair_friction[i]
    if first != second or roll_first != roll_second:
        return "friction must be the same along both tangents of a contact pair"
    ends = [{int(model.pair_geom1[k]), int(model.pair_geom2[k])} for k in range(i + 1)]
    return "two geoms stand in one contact pair only" if ends[i] in ends[:i] else None


def _equalities(source: Source) -> Iterable[Omission]:
    model = source.model
    for i in range(model.neq):
        if mjtEq(model.eq_type[i]) not in EQUALITIES:
            name = mjtEq(model.eq_type[i]).name.removeprefix("mjEQ_").lower()
            yield source.report("equalities", i, f"only connect, weld and joint are modelled, this is of type {name}")


def _actuators(source: Source) -> Iterable[Omission]:
    for i in range(source.model.nactuator):
        fault = actuator_fault(source.model, i)
        if fault:
            yield source.report("actuators", i, fault)


def actuator_fault(model: mujoco.MjModel, i: int) -> str | None:
    """Why an actuator is not gain u + bias . (1, length, velocity) on a joint; None if it is."""
    transmission, dynamics = mjtTrn(model.actuator_trntype[i]), mjtDyn(model.actuator_dyntype[i])
    gain, bias = mjtGain(model.actuator_gaintype[i]), mjtBias(model.actuator_biastype[i])
    if model.actuator_plugin[i] >= 0:
        return "plugins are not modelled"
    if transmission in TRANSMISSIONS:
        return f"actuators act on joints here, this one through a {TRANSMISSIONS[transmission]} transmission"
    if gain == mjtGain.mjGAIN_MUSCLE or dynamics == mjtDyn.mjDYN_MUSCLE:
        return "muscles are not modelled"
    joint_type = mjtJoint(model.jnt_type[model.actuator_trnid[i, 0]])
    turning = joint_type in (mjtJoint.mjJNT_BALL, mjtJoint.mjJNT_FREE)
    if transmission == mjtTrn.mjTRN_JOINTINPARENT and turning:
        return "a ball or free joint is driven in the child's frame here, not in the parent's"
    if dynamics != mjtDyn.mjDYN_NONE:
        return f"actuators have no state of their own here, this one has {dynamics.name.removeprefix('mjDYN_').lower()}"
    constant_gain = gain == mjtGain.mjGAIN_FIXED or (
        gain == mjtGain.mjGAIN_AFFINE and not model.actuator_gainprm[i, 1:3].any()
    )
    if not constant_gain:
        return f"the gain must be a constant, it is of type {gain.name.removeprefix('mjGAIN_').lower()}"
    if bias not in (mjtBias.mjBIAS_NONE, mjtBias.mjBIAS_AFFINE):
        return f"the bias must be affine, it is of type {bias.name.removeprefix('mjBIAS_').lower()}"
    if model.actuator_ctrlnum[i] != 1 or model.actuator_outnum[i] != 1:
        return "an actuator has one control and one force here"
    if model.actuator_delay[i] or model.actuator_history[i].any():
        return "delays are not modelled"
    if model.actuator_armature[i] or model.actuator_damping[i] or model.actuator_dampingpoly[i].any():
        return "armature and damping belong to the joint here, not to the actuator"
    return None


def notes(source: Source) -> list[Omission]:
    """What acts only where shapes touch and has no counterpart here, and poses of mocap bodies in keyframes."""
    return [*_solver_notes(source.model, ("geom_adhesion", "geom_surfacevel")), *_mocap_notes(source.model)]


def _mocap_notes(model: mujoco.MjModel) -> Iterable[Omission]:
    bodies = np.argsort(model.body_mocapid)[model.nbody - model.nmocap :]
    described = np.concatenate([model.body_pos[bodies], model.body_quat[bodies]], axis=1)
    for i in range(model.nkey if model.nmocap else 0):
        position, turn = model.key_mpos[i].reshape(-1, 3), model.key_mquat[i].reshape(-1, 4)
        if not np.allclose(np.concatenate([position, turn], axis=1), described):
            reason = "poses of mocap bodies are not kept: give them by prescribed="
            yield Omission(f"keyframe {model.key(i).name!r}", reason)


def small_notes(source: Source) -> list[Omission]:
    """What is no part of a mechanism and is not kept, and switches of the file that were applied."""
    return [*_flag_notes(source.model), *_solver_notes(source.model, SOFTNESS), *_unused_notes(source.model)]


def _flag_notes(model: mujoco.MjModel) -> Iterable[Omission]:
    for flag, effect in FLAGS_APPLIED.items():
        if disabled(model, flag):
            yield Omission(f"flag {flag.name.removeprefix('mjDSBL_').lower()}='disable'", f"applied: {effect}")
    if model.opt.disableactuator:
        yield Omission("option actuatorgroupdisable", "applied: actuators of these groups have no force")
    for flag in (mjtEnableBit.mjENBL_OVERRIDE, mjtEnableBit.mjENBL_SLEEP):
        if model.opt.enableflags & int(flag):
            name = flag.name.removeprefix("mjENBL_").lower()
            yield Omission(f"flag {name}='enable'", "a setting of MuJoCo's constraint solver, not part of the model")


def _solver_notes(model: mujoco.MjModel, names: Sequence[str]) -> Iterable[Omission]:
    """Settings of MuJoCo's constraint solver that have no counterpart, where they are not the default."""
    for name in names:
        kind, _, setting = name.partition("_")
        values = np.asarray(getattr(model, name))
        unusual = values != np.asarray(STANDARD.get(setting, 0))
        if unusual.any():
            unusual = unusual.reshape(len(values), -1).any(axis=1)
            count = int(unusual.sum())
            words = {"jnt": "joint limit", "dof": "degree of freedom", "eq": "equality"}.get(kind, kind)
            element = f"{setting} of {count} {words}" + "s" * (count > 1 and words != "equality")
            yield Omission(element, "a setting of MuJoCo's constraint solver, not part of the model")


def _unused_notes(model: mujoco.MjModel) -> Iterable[Omission]:
    for count, word in (
        (model.nsensor, "sensors"),
        (model.ncam, "cameras"),
        (model.nskin, "skins"),
        (model.ntuple, "tuples"),
    ):
        if count:
            yield Omission(f"{word} ({count})", "not part of the model; no effect on motion")
    if model.nkey and model.key_act.any():
        yield Omission("keyframes", "only qpos, qvel and ctrl are kept")
