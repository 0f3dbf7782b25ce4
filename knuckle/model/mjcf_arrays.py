"""A compiled MuJoCo model read as a description."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
from mujoco import mjtBias, mjtDisableBit, mjtEq, mjtGeom, mjtIntegrator, mjtJoint, mjtObj

from knuckle.model import inertia as rigid
from knuckle.model.description import (
    IDENTITY,
    ORIGIN,
    WORLD,
    Actuator,
    Connect,
    Description,
    Equality,
    Frame,
    Joint,
    JointKind,
    Link,
    Mimic,
    Vector,
    Weld,
)
from knuckle.model.geometry import ContactPair, Mesh, Shape, ShapeKind
from knuckle.model.mjcf_check import EQUALITIES, Source, actuator_fault, disabled, pair_fault
from knuckle.model.mjcf_inertia import NOTHING
from knuckle.model.report import Omission

CARRIED = "knuckle/"  # prefix of custom elements that carry what MJCF has no attribute for
KINDS: dict[int, JointKind] = {
    int(mjtJoint.mjJNT_FREE): "free",
    int(mjtJoint.mjJNT_BALL): "ball",
    int(mjtJoint.mjJNT_SLIDE): "prismatic",
    int(mjtJoint.mjJNT_HINGE): "revolute",
}
SHAPES: dict[int, tuple[ShapeKind, int]] = {
    int(mjtGeom.mjGEOM_PLANE): ("plane", 0),
    int(mjtGeom.mjGEOM_SPHERE): ("sphere", 1),
    int(mjtGeom.mjGEOM_CAPSULE): ("capsule", 2),
    int(mjtGeom.mjGEOM_ELLIPSOID): ("ellipsoid", 3),
    int(mjtGeom.mjGEOM_CYLINDER): ("cylinder", 2),
    int(mjtGeom.mjGEOM_BOX): ("box", 3),
    int(mjtGeom.mjGEOM_MESH): ("mesh", 3),
}
INTEGRATORS = {  # as MJCF names them
    int(number): {"EULER": "Euler", "RK4": "RK4"}.get(name.removeprefix("mjINT_"), name.removeprefix("mjINT_").lower())
    for name, number in mjtIntegrator.__members__.items()
}
PLAIN_RGBA = (0.5, 0.5, 0.5, 1.0)


class _Names:
    """Names for one kind of object: the file's own, and made-up ones where it gives none."""

    def __init__(self, model: mujoco.MjModel, kind: mjtObj, count: int):
        self.own = [mujoco.mj_id2name(model, int(kind), i) or "" for i in range(count)]
        self.taken = {name for name in self.own if name}

    def unique(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name

    def complete(self, wanted) -> list[str]:
        return [name or self.unique(wanted(i)) for i, name in enumerate(self.own)]


class Reader:
    """Reads a compiled model, MuJoCo's arrays to ours; `m` has the names of MuJoCo's documentation."""

    def __init__(self, source: Source):
        self.source, self.m = source, source.model
        m = self.m
        links = _Names(m, mjtObj.mjOBJ_BODY, m.nbody)
        self.links = links.complete(lambda i: f"body{i}")
        self.joints = _Names(m, mjtObj.mjOBJ_JOINT, m.njnt).complete(self._joint_name)
        self.geoms = _Names(m, mjtObj.mjOBJ_GEOM, m.ngeom).complete(self._geom_name)
        self.actuators = _Names(m, mjtObj.mjOBJ_ACTUATOR, m.nactuator).complete(self._actuator_name)
        self.equalities = _Names(m, mjtObj.mjOBJ_EQUALITY, m.neq).complete(self._equality_name)
        self.keys = _Names(m, mjtObj.mjOBJ_KEY, m.nkey).complete(lambda i: f"key{i}")
        self.sites, self.renamed = self._site_names(links)
        self.meshes: dict[int, tuple[Mesh, tuple[float, ...], np.ndarray, np.ndarray]] = {}

    def _joint_name(self, i: int) -> str:
        body = self.m.jnt_bodyid[i]
        suffix = "" if self.m.body_jntnum[body] == 1 else str(i - self.m.body_jntadr[body])
        return f"{self.links[body]}_joint{suffix}"

    def _geom_name(self, i: int) -> str:
        body = self.m.geom_bodyid[i]
        return f"{self.links[body]}_geom{i - self.m.body_geomadr[body]}"

    def _actuator_name(self, i: int) -> str:
        on_joint = actuator_fault(self.m, i) is None
        return f"{self.joints[self.m.actuator_trnid[i, 0]]}_actuator" if on_joint else f"actuator{i}"

    def _equality_name(self, i: int) -> str:
        word = {mjtEq.mjEQ_CONNECT: "connect", mjtEq.mjEQ_WELD: "weld", mjtEq.mjEQ_JOINT: "mimic"}
        return f"{word.get(mjtEq(self.m.eq_type[i]), 'equality')}{i}"

    def _site_names(self, links: _Names) -> tuple[list[str], list[Omission]]:
        """Sites and bodies share one space of names here: a site that clashes is renamed, and that is reported."""
        own = _Names(self.m, mjtObj.mjOBJ_SITE, self.m.nsite).own
        doubled = {name for name in own if name in links.taken}
        links.taken |= set(own) - {""}
        names, renamed = [], []
        for i, name in enumerate(own):
            wanted = f"{name}_site" if name else f"{self.links[self.m.site_bodyid[i]]}_site"
            names.append(links.unique(wanted) if not name or name in doubled else name)
            if name in doubled:
                reason = f"a body has this name too; the frame is called {names[-1]!r}"
                renamed.append(self.source.report("sites", i, reason))
        return names, renamed

    def description(self) -> tuple[Description, list[Omission]]:
        m = self.m
        gravity = np.zeros(3) if disabled(m, mjtDisableBit.mjDSBL_GRAVITY) else m.opt.gravity.copy()
        description = Description(
            links=[self._link(i) for i in range(1, m.nbody)],
            name=self.source.spec.modelname or "model",
            gravity=gravity,
            world_shapes=self._shapes(0),
            world_frames=self._frames(0),
            actuators=[self._actuator(i) for i in range(m.nactuator) if actuator_fault(m, i) is None],
            equalities=[self._equality(i) for i in range(m.neq) if mjtEq(m.eq_type[i]) in EQUALITIES],
            excludes=[(pair.bodyname1, pair.bodyname2) for pair in self.source.spec.excludes],
            keyframes={name: q.copy() for name, q in zip(self.keys, m.key_qpos, strict=True)},
            keyframe_velocities={name: qd.copy() for name, qd in zip(self.keys, m.key_qvel, strict=True) if qd.any()},
            keyframe_controls=self._keyframe_controls(),
            pairs=self._pairs(),
            self_collision=self._carried("no_self_collision") is None,
            parents_collide=disabled(m, mjtDisableBit.mjDSBL_FILTERPARENT),
            **self._stepping(),
        )
        return description, self.renamed

    def _pairs(self) -> list[ContactPair]:
        """Of shapes that are kept; none where contact is switched off."""
        m = self.m
        if disabled(m, mjtDisableBit.mjDSBL_CONTACT, mjtDisableBit.mjDSBL_CONSTRAINT):
            return []
        ends = [(int(a), int(b)) for a, b in zip(m.pair_geom1, m.pair_geom2, strict=True)]
        kept = [k for k, pair in enumerate(ends) if all(int(m.geom_type[geom]) in SHAPES for geom in pair)]
        return [self._pair(k) for k in kept if pair_fault(m, k) is None]

    def _pair(self, k: int) -> ContactPair:
        m = self.m
        return ContactPair(
            self.geoms[m.pair_geom1[k]],
            self.geoms[m.pair_geom2[k]],
            friction=tuple(float(f) for f in m.pair_friction[k, [0, 2, 3]]),
            margin=float(m.pair_margin[k]),
            condim=int(m.pair_dim[k]),
            gap=float(m.pair_gap[k]),
            solref=tuple(float(x) for x in m.pair_solref[k]),
            solreffriction=tuple(float(x) for x in m.pair_solreffriction[k]),
            solimp=tuple(float(x) for x in m.pair_solimp[k]),
            name=mujoco.mj_id2name(m, int(mjtObj.mjOBJ_PAIR), k) or "",
        )

    def _stepping(self) -> dict[str, Any]:
        """Time step and integrator; a saved model that had none says so."""
        if self._carried("no_timestep") is not None:
            return {}
        option = self.m.opt
        return {"timestep": float(option.timestep), "integrator": INTEGRATORS[int(option.integrator)]}

    def _keyframe_controls(self) -> dict[str, Vector]:
        """Of the keyframes whose file gives them, for the actuators that are kept."""
        kept = [i for i in range(self.m.nactuator) if actuator_fault(self.m, i) is None]
        given = [len(key.ctrl) > 0 for key in sorted(self.source.spec.keys, key=lambda key: key.id)]
        rows = zip(self.keys, self.m.key_ctrl, given, strict=True)
        return {name: control[kept].copy() for name, control, is_given in rows if is_given and kept}

    def _link(self, i: int) -> Link:
        m = self.m
        first = m.body_jntadr[i]
        joints = tuple(self._joint(j) for j in range(first, first + m.body_jntnum[i]))
        absolute = bool(joints) and joints[0].kind == "free"  # its coordinates are the pose in the world
        R = rigid.rotation_matrix(m.body_iquat[i])
        moment = R @ np.diag(np.where(m.body_inertia[i] == NOTHING, 0.0, m.body_inertia[i])) @ R.T
        return Link(
            name=self.links[i],
            parent=self.links[m.body_parentid[i]] if m.body_parentid[i] else WORLD,
            joints=joints,
            position=ORIGIN if absolute else m.body_pos[i].copy(),
            rotation=IDENTITY if absolute else m.body_quat[i].copy(),
            mass=0.0 if m.body_mass[i] == NOTHING else float(m.body_mass[i]),
            com=m.body_ipos[i].copy(),
            inertia=0.5 * (moment + moment.T),
            shapes=self._shapes(i),
            frames=self._frames(i),
            mocap=bool(m.body_mocapid[i] >= 0),
        )

    def _joint(self, j: int) -> Joint:
        m = self.m
        kind = KINDS[int(m.jnt_type[j])]
        q, v = m.jnt_qposadr[j], m.jnt_dofadr[j]
        nq, nv = {"free": (7, 6), "ball": (4, 3)}.get(kind, (1, 1))
        sprung = not disabled(m, mjtDisableBit.mjDSBL_SPRING)
        damped = not disabled(m, mjtDisableBit.mjDSBL_DAMPER)
        rough = not disabled(m, mjtDisableBit.mjDSBL_FRICTIONLOSS, mjtDisableBit.mjDSBL_CONSTRAINT)
        lower, upper = self._range(j, kind)
        speed = self._carried(f"speed/{self.joints[j]}")
        return Joint(
            kind,
            name=self.joints[j],
            axis=m.jnt_axis[j].copy() if kind in ("revolute", "prismatic") else "z",
            anchor=m.jnt_pos[j].copy() if kind in ("revolute", "ball") else ORIGIN,
            reference=m.qpos0[q : q + nq].copy(),
            lower=lower,
            upper=upper,
            stiffness=float(m.jnt_stiffness[j]) * sprung,
            rest=m.qpos_spring[q : q + nq].copy(),
            damping=m.dof_damping[v : v + nv] * damped,
            armature=m.dof_armature[v : v + nv].copy(),
            friction=m.dof_frictionloss[v : v + nv] * rough,
            effort=float(m.jnt_actfrcrange[j, 1]) if m.jnt_actfrclimited[j] else math.inf,
            speed=math.inf if speed is None else speed,
        )

    def _range(self, j: int, kind: JointKind) -> tuple[float, float]:
        limited = self.m.jnt_limited[j] and kind != "free"
        if not limited or disabled(self.m, mjtDisableBit.mjDSBL_LIMIT, mjtDisableBit.mjDSBL_CONSTRAINT):
            return -math.inf, math.inf
        lower, upper = (float(limit) for limit in self.m.jnt_range[j])
        return (-math.inf if kind == "ball" else lower), upper

    def _carried(self, name: str) -> np.ndarray | None:
        """Numbers that a saved model carries as custom data."""
        number = mujoco.mj_name2id(self.m, int(mjtObj.mjOBJ_NUMERIC), CARRIED + name)
        if number < 0:
            return None
        start = self.m.numeric_adr[number]
        return self.m.numeric_data[start : start + self.m.numeric_size[number]].copy()

    def _frames(self, body: int) -> list[Frame]:
        m = self.m
        mine = np.flatnonzero(m.site_bodyid == body)
        named = [i for i in mine if not self.sites[i].startswith(CARRIED)]
        return [Frame(self.sites[i], m.site_pos[i].copy(), m.site_quat[i].copy()) for i in named]

    def _shapes(self, body: int) -> list[Shape]:
        mine = np.flatnonzero(self.m.geom_bodyid == body)
        return [self._shape(int(i)) for i in mine if int(self.m.geom_type[i]) in SHAPES]

    def _shape(self, i: int) -> Shape:
        m = self.m
        kind, sizes = SHAPES[int(m.geom_type[i])]
        size = tuple(float(s) for s in m.geom_size[i, :sizes])
        position, rotation, mesh = m.geom_pos[i].copy(), m.geom_quat[i].copy(), None
        if kind == "mesh":
            mesh, size, centre, turn = self._mesh(int(m.geom_dataid[i]))
            rotation = rigid.quaternion_product(rotation, turn * np.array([1, -1, -1, -1]))
            position = position - rigid.rotation_matrix(rotation) @ centre
        touching = not disabled(m, mjtDisableBit.mjDSBL_CONTACT, mjtDisableBit.mjDSBL_CONSTRAINT)
        return Shape(
            kind,
            size,
            position=position,
            rotation=rotation,
            name=self.geoms[i],
            friction=tuple(float(f) for f in m.geom_friction[i]),
            contype=int(m.geom_contype[i]) * touching,
            conaffinity=int(m.geom_conaffinity[i]) * touching,
            rgba=self._colour(i),
            mesh=mesh,
            margin=float(m.geom_margin[i]),
            priority=int(m.geom_priority[i]),
            gap=float(m.geom_gap[i]),
            solref=tuple(float(x) for x in m.geom_solref[i]),
            solimp=tuple(float(x) for x in m.geom_solimp[i]),
            solmix=float(m.geom_solmix[i]),
            condim=int(m.geom_condim[i]),
        )

    def _colour(self, i: int) -> tuple[float, ...]:
        """The geom's own colour, or its material's if it has the default one, as MuJoCo draws it."""
        carried = self._carried(f"rgba/{self.geoms[i]}")
        if carried is not None:
            return tuple(map(float, carried))
        own, material = self.m.geom_rgba[i], self.m.geom_matid[i]
        chosen = self.m.mat_rgba[material] if material >= 0 and tuple(own) == PLAIN_RGBA else own
        return tuple(float(str(c)) for c in chosen)  # the shortest decimals of MuJoCo's float32

    def _mesh(self, i: int) -> tuple[Mesh, tuple[float, ...], np.ndarray, np.ndarray]:
        """A mesh, its scale, and the pose of the frame of inertia that MuJoCo has moved it to."""
        if i not in self.meshes:
            m = self.m
            centre, turn = m.mesh_pos[i].copy(), m.mesh_quat[i].copy()
            stated = self._stated_mesh(i)
            if stated is None:
                vertices = m.mesh_vert[m.mesh_vertadr[i] :][: m.mesh_vertnum[i]].astype(float)
                vertices = (vertices @ rigid.rotation_matrix(turn).T + centre).astype(np.float32)
                faces = m.mesh_face[m.mesh_faceadr[i] :][: m.mesh_facenum[i]]
                stated = Mesh(vertices.astype(float), faces), (1.0, 1.0, 1.0)
            self.meshes[i] = stated[0], stated[1], centre, turn
        return self.meshes[i]

    def _stated_mesh(self, i: int) -> tuple[Mesh, tuple[float, ...]] | None:
        """A mesh whose vertices and faces stand in the XML, just as they stand there."""
        mesh = next((m for m in self.source.spec.meshes if m.id == i), None)
        if mesh is None or mesh.file or not len(mesh.userface) or np.any(mesh.refpos) or mesh.refquat[0] != 1:
            return None
        number = mujoco.mj_name2id(self.m, int(mjtObj.mjOBJ_TEXT), f"{CARRIED}path/{mesh.name}")
        path = _text(self.m, number) if number >= 0 else ""
        return Mesh(np.array(mesh.uservert), np.array(mesh.userface), path), tuple(float(s) for s in mesh.scale)

    def _actuator(self, i: int) -> Actuator:
        m = self.m
        joint, control, out = m.actuator_trnid[i, 0], m.actuator_ctrladr[i], m.actuator_outadr[i]
        off = disabled(m, mjtDisableBit.mjDSBL_ACTUATION) or bool(
            m.opt.disableactuator & (1 << int(m.actuator_group[i]))
        )
        affine = m.actuator_biastype[i] == mjtBias.mjBIAS_AFFINE and not off
        bias = m.actuator_biasprm[i, :3].copy() if affine else np.zeros(3)
        kind = KINDS[int(m.jnt_type[joint])]
        free_control = not m.actuator_ctrllimited[control] or disabled(m, mjtDisableBit.mjDSBL_CLAMPCTRL)
        controls = (-math.inf, math.inf) if free_control else map(float, m.actuator_ctrlrange[control])
        forces = map(float, m.actuator_forcerange[i]) if m.actuator_forcelimited[i] else (-math.inf, math.inf)
        control_lower, control_upper = controls
        force_lower, force_upper = forces
        return Actuator(
            joint=self.joints[joint],
            name=self.actuators[i],
            gear=m.actuator_gear[out, : {"free": 6, "ball": 3}.get(kind, 1)].copy(),
            gain=0.0 if off else float(m.actuator_gainprm[i, 0]),
            bias=bias,
            control_lower=control_lower,
            control_upper=control_upper,
            force_lower=force_lower,
            force_upper=force_upper,
        )

    def _equality(self, i: int) -> Equality:
        """MuJoCo's eq_data as its solver reads it (engine_core_constraint.c, mj_instantiateEquality)."""
        m = self.m
        data, name = m.eq_data[i], self.equalities[i]
        off = disabled(m, mjtDisableBit.mjDSBL_EQUALITY, mjtDisableBit.mjDSBL_CONSTRAINT)
        active = bool(m.eq_active0[i]) and not off
        if m.eq_type[i] == mjtEq.mjEQ_JOINT:
            other = self.joints[m.eq_obj2id[i]] if m.eq_obj2id[i] >= 0 else None
            return Mimic(self.joints[m.eq_obj1id[i]], other, data[:5].copy(), name, active)
        ends = [self._end(i, int(m.eq_obj1id[i])), self._end(i, int(m.eq_obj2id[i]))]
        by_site = m.eq_objtype[i] == mjtObj.mjOBJ_SITE
        if m.eq_type[i] == mjtEq.mjEQ_CONNECT:
            points = [end[1] for end in ends] if by_site else [data[:3].copy(), data[3:6].copy()]
            return Connect(ends[0][0], ends[1][0], points[0], points[1], name, active)
        if not by_site:
            ends[0] = ends[0][0], data[3:6].copy(), data[6:10].copy()
            ends[1] = ends[1][0], data[:3].copy(), np.array(IDENTITY)
        (a, position_a, rotation_a), (b, position_b, rotation_b) = ends
        scale = float(data[10])
        return Weld(a, b, position_a, rotation_a, position_b, rotation_b, scale, name, active)

    def _end(self, equality: int, number: int) -> tuple[str, np.ndarray, np.ndarray]:
        """The link of one side of a constraint, and the pose on it of the site that names the side, if one does."""
        if self.m.eq_objtype[equality] == mjtObj.mjOBJ_SITE:
            body = self.m.site_bodyid[number]
            return self._link_name(body), self.m.site_pos[number].copy(), self.m.site_quat[number].copy()
        return self._link_name(number), np.zeros(3), np.array(IDENTITY)

    def _link_name(self, body: int) -> str:
        return self.links[body] if body > 0 else WORLD


def _text(model: mujoco.MjModel, number: int) -> str:
    start = model.text_adr[number]
    raw = model.text_data[start : start + model.text_size[number]]
    return bytes(raw).split(b"\0")[0].decode()
