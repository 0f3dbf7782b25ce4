"""Which shapes may touch, at which distance, and with which friction: as in MuJoCo, by the contacts that it lists."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, Impulse, collide, contact_pairs
from knuckle.contact.surfaces import surfaces

FAR = 50.0  # [m]; a margin at which MuJoCo lists every pair that may touch
EXACT = ("sphere", "capsule", "plane")  # of their distances both engines have closed forms


def _geom(rng, name: str, kind: str) -> str:
    size = {"sphere": "0.1", "capsule": "0.05 0.2", "ellipsoid": "0.1 0.2 0.3", "plane": "5 5 1"}[kind]
    words = {
        "contype": rng.integers(0, 4),
        "conaffinity": rng.integers(0, 4),
        "friction": f"{rng.uniform(0.1, 2):.3f} {rng.uniform(0, 0.1):.4f} {rng.uniform(0, 0.1):.4f}",
        "priority": rng.integers(0, 2),
        "margin": f"{rng.choice([0.0, rng.uniform(0, 0.1)]):.4f}",
        "gap": f"{rng.choice([0.0, 0.02]):.2f}",
    }
    pos = " ".join(f"{x:.3f}" for x in (rng.uniform(-0.3, 0.3, 3) if kind != "plane" else (0, 0, -0.6)))
    attributes = " ".join(f'{key}="{value}"' for key, value in words.items())
    turn = "" if kind == "plane" else f'euler="{rng.uniform(-180, 180):.1f} {rng.uniform(-180, 180):.1f} 0"'
    return f'<geom name="{name}" type="{kind}" size="{size}" pos="{pos}" {turn} {attributes}/>'


def random_scene(seed: int) -> str:
    """Two trees with welded bodies, shapes on the world, excludes, and pairs with settings of their own."""
    rng = np.random.default_rng(seed)
    kinds = ("sphere", "capsule") if seed % 2 else ("sphere", "capsule", "ellipsoid")

    def body(name: str, joint: str, inner: str = "") -> str:
        geoms = "".join(_geom(rng, f"{name}{k}", str(rng.choice(kinds))) for k in range(2))
        return f'<body name="{name}" pos="{rng.uniform(-0.2, 0.2):.3f} 0 0.2">{joint}{geoms}{inner}</body>'

    hinges = '<joint axis="0 1 0"/>', '<joint axis="1 0 0"/><joint axis="0 1 0"/>'
    tip = body("c", hinges[0], body("d", ""))
    trees = body("a", "<freejoint/>", body("b", hinges[1], tip)) + body("e", hinges[0], body("f", "", body("g", "")))
    world = _geom(rng, "floor", "plane") + _geom(rng, "stone", "sphere") + body("post", "")
    names = [f"{x}{k}" for x in "abcdefg" for k in range(2)] + ["floor", "stone"]
    chosen = {tuple(sorted(rng.choice(names, 2, replace=False))) for _ in range(4)}
    pairs = "".join(
        f'<pair geom1="{a}" geom2="{b}" condim="{rng.choice([1, 3, 4])}" margin="{rng.uniform(0, 0.2):.3f}" '
        f'friction="{(mu := rng.uniform(0.1, 2)):.3f} {mu:.3f} 0.01 0.02 0.02" gap="0.01" solref="0.05 1"/>'
        for a, b in sorted(chosen)
    )
    excludes = '<exclude body1="a" body2="c"/><exclude body1="world" body2="b"/><exclude body1="d" body2="e"/>'
    flag = '<flag filterparent="disable"/>' if seed % 3 == 0 else ""
    return (
        f'<mujoco><option>{flag}</option><worldbody>{world}{trees}</worldbody>'
        f"<contact>{excludes}{pairs}</contact></mujoco>"
    )  # fmt: skip


def every_pair(theirs: mujoco.MjModel, q: np.ndarray) -> mujoco.MjData:
    """MuJoCo's contacts if margins are so wide that all pairs that may touch do; other settings are as they were."""
    wide = theirs
    saved = wide.geom_margin.copy(), wide.pair_margin.copy()
    wide.geom_margin[:], wide.pair_margin[:] = FAR, FAR
    wide.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    data = mujoco.MjData(wide)
    data.qpos[:] = q
    mujoco.mj_fwdPosition(wide, data)
    wide.geom_margin[:], wide.pair_margin[:] = saved
    return data


def moves(theirs: mujoco.MjModel, contact) -> bool:
    """Whether MuJoCo's contact can push anything: shapes on one rigid body, or on the world, cannot."""
    first, second = (theirs.body_weldid[theirs.geom_bodyid[g]] for g in contact.geom)
    return first != second


def by_pair(theirs: mujoco.MjModel, data: mujoco.MjData, names: tuple[str, ...]) -> dict[frozenset[int], list]:
    found: dict[frozenset[int], list] = {}
    for contact in data.contact:
        if moves(theirs, contact):
            found.setdefault(frozenset(int(g) for g in contact.geom), []).append(contact)
    return found


def numbers(model: kn.Model, theirs: mujoco.MjModel) -> dict[int, int]:
    """Our number of each geom of MuJoCo's."""
    order = {name: k for k, name in enumerate(model.geometry.names)}
    named = [mujoco.mj_id2name(theirs, int(mujoco.mjtObj.mjOBJ_GEOM), i) for i in range(theirs.ngeom)]
    return {i: order[name] for i, name in enumerate(named) if name in order}


@pytest.mark.parametrize("seed", range(12))
def test_pairs_friction_margins_and_distances_are_those_of_mujocos_contacts(seed):
    xml = random_scene(seed)
    model, theirs = kn.load(xml), mujoco.MjModel.from_xml_string(xml)
    q = np.asarray(model.reference)
    number, data = numbers(model, theirs), every_pair(theirs, q)
    listed = by_pair(theirs, data, model.geometry.names)
    pairs = contact_pairs(model, self_collision=True)
    assert {frozenset((p.a, p.b)) for p in pairs} == {frozenset(number[g] for g in pair) for pair in listed}
    surface = jax.tree.map(np.asarray, surfaces(model.geometry, [p.a for p in pairs], [p.b for p in pairs]))
    for k, pair in enumerate(pairs):
        contact = listed[frozenset(g for g, n in number.items() if n in (pair.a, pair.b))][0]
        sliding = contact.friction[0] if contact.dim > 1 else surface.friction[k]
        assert surface.friction[k] == pytest.approx(max(sliding, 0.0), abs=1e-12)
        assert surface.condim[k] == contact.dim
    check_distances(model, theirs, q, number)


def check_distances(model: kn.Model, theirs: mujoco.MjModel, q: np.ndarray, number: dict[int, int]) -> None:
    """Of spheres, capsules and planes: contacts that MuJoCo lets push, their distances, normals and margins."""
    data = mujoco.MjData(theirs)
    data.qpos[:] = q
    mujoco.mj_fwdPosition(theirs, data)
    exact = {n for n in number.values() if model.geometry.kind[n] in EXACT}
    pairs = tuple(p for p in contact_pairs(model, self_collision=True) if {p.a, p.b} <= exact)
    ours = jax.tree.map(np.asarray, jax.jit(lambda q: collide(model, q, pairs))(q))
    names = [tuple(name.rpartition("#")[0].split("|")) for name in ours.names]
    active = [k for k in range(len(ours)) if ours.gap[k] < 0]
    pushing = [c for c in data.contact if moves(theirs, c) and {number[int(g)] for g in c.geom} <= exact]
    pushing = [c for c in pushing if c.dist < c.includemargin]
    assert len(active) == len(pushing)
    for contact in pushing:
        ends = [model.geometry.names[number[int(g)]] for g in contact.geom]
        same = [k for k in active if set(names[k]) == set(ends)]
        distance = ours.gap[np.array(same)] + ours.margin[np.array(same)]
        best = same[int(np.argmin(np.abs(distance - contact.dist)))]
        assert float(ours.gap[best] + ours.margin[best]) == pytest.approx(contact.dist, abs=1e-9)
        assert float(ours.margin[best]) == pytest.approx(contact.includemargin, abs=1e-12)
        towards = 1.0 if names[best][0] == ends[1] else -1.0  # ours from b to a, MuJoCo's from the first to the second
        np.testing.assert_allclose(towards * np.asarray(ours.normal[best]), contact.frame[:3], atol=1e-8)


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    return None if found is None or found.origin is None else Path(found.origin).parent


SUITE, GYM = _package("dm_control"), _package("gymnasium")
SUITE_FILES = ("hopper", "walker", "cheetah", "humanoid", "pendulum")
GYM_FILES = ("ant", "half_cheetah", "hopper", "humanoid")
FILES = [SUITE / "suite" / f"{name}.xml" for name in SUITE_FILES] if SUITE else []
FILES += [GYM / "envs" / "mujoco" / "assets" / f"{name}.xml" for name in GYM_FILES] if GYM else []


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-4]}-{path.stem}")
def test_pairs_friction_and_margins_of_robot_files_are_mujocos(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, _ = kn.load(path, strict=False)
    theirs = mujoco.MjModel.from_xml_path(str(path))
    data = every_pair(theirs, theirs.qpos0)
    link = model.geometry.link
    mine = {frozenset((p.a, p.b)): p for p in contact_pairs(model, self_collision=True)}
    assert len(model.geometry) == theirs.ngeom and all(n >= -1 for n in link)
    listed = by_pair(theirs, data, model.geometry.names)
    order = np.argsort(theirs.geom_bodyid, kind="stable")  # ours go body by body, as MuJoCo's do
    assert np.array_equal(order, np.arange(theirs.ngeom))
    assert set(mine) == set(listed)
    for ends, pair in mine.items():
        surface, contact = surfaces(model.geometry, [pair.a], [pair.b]), listed[ends][0]
        assert float(surface.friction[0]) == pytest.approx(contact.friction[0], abs=1e-12)
        margins = theirs.geom_margin[contact.geom]
        assert float(surface.margin[0]) == pytest.approx(float(np.sum(margins)), abs=1e-12)


MARGIN = """<mujoco><option timestep="0.002"/><worldbody>
<geom name="floor" type="plane" size="1 1 1" margin="0.01"/>
<body name="ball" pos="0 0 0.14"><freejoint/><geom name="ball" size="0.1" margin="0.005" gap="0.002"/></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize("contact", [Impulse(), kn.contact.Compliant(stiffness=1e6, exponent=1.0)])
def test_a_ball_rests_at_the_sum_of_the_margins(contact):
    """MuJoCo's default softness lets it sink by 0.37 mm; a spring of 1 MN/m by its weight over that, 41 um."""
    model = kn.load(MARGIN)
    run = kn.rollout(model, model.state(), dt=0.002, steps=500, contact=contact, native=True)
    assert float(run.q[-1, 2]) == pytest.approx(0.115, abs=5e-5)
    theirs = mujoco.MjModel.from_xml_string(MARGIN)
    data = mujoco.MjData(theirs)
    mujoco.mj_step(theirs, data, 500)
    assert data.qpos[2] == pytest.approx(0.115, abs=5e-4)


def test_the_height_of_rest_moves_with_the_margin_and_tracing_changes_nothing():
    model = kn.load(MARGIN)

    def height(margin):
        own = eqx.tree_at(lambda m: m.geometry.margin, model, jnp.stack([jnp.asarray(0.01), margin]))
        return kn.rollout(own, model.state(), dt=0.002, steps=300, contact=Impulse()).q[-1, 2]

    value, slope = kn.native.jit(jax.value_and_grad(height))(0.005)
    run = kn.rollout(model, model.state(), dt=0.002, steps=300, contact=Impulse(), native=True)
    assert float(value) == pytest.approx(float(run.q[-1, 2]), abs=1e-12)
    fast, step = kn.native.jit(height), 1e-6
    difference = (fast(0.005 + step) - fast(0.005 - step)) / (2 * step)
    assert float(slope) == pytest.approx(float(difference), abs=1e-4)
    assert float(slope) == pytest.approx(1.0, abs=1e-2)


def test_long_tests_are_not_left_out_within_the_margin():
    """A box 5 cm above another, whose margin is 6 cm: bounding boxes are farther apart than it can move."""
    below = kn.shapes.box(0.1, 0.1, 0.1, margin=0.06, position=(0, 0, -0.1))
    above = kn.Link("box", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(0.1, 0.1, 0.1))
    model = kn.build([above], world_shapes=[below])
    start = kn.State(np.array([0, 0, 0.15, 1.0, 0, 0, 0]), np.zeros(6))
    run = kn.rollout(model, start, dt=1e-3, steps=400, contact=Impulse(), native=True, check=True)
    assert float(run.q[-1, 2]) == pytest.approx(0.16, abs=1e-5)


def test_a_pair_may_be_described_by_hand_and_is_checked():
    balls = [kn.Link(n, joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1, name=n, contype=0)) for n in "ab"]
    pair = kn.ContactPair("a", "b", friction=(0.3,), margin=0.02)
    model = kn.build(balls, pairs=[pair])
    assert [(p.a, p.b) for p in contact_pairs(model, self_collision=True)] == [(0, 1)]
    q = np.array([0, 0, 0, 1.0, 0, 0, 0, 0.3, 0, 0, 1, 0, 0, 0])
    contacts = collide(model, q, contact_pairs(model, self_collision=True))
    assert float(contacts.gap[0]) == pytest.approx(0.08) and float(contacts.friction[0]) == 0.3
    with pytest.raises(ValueError, match="pair 'a', 'c': expected one shape 'c'; there are a, b"):
        kn.build(balls, pairs=[kn.ContactPair("a", "c")])
    with pytest.raises(ValueError, match="no two a second time"):
        kn.build(balls, pairs=[pair, kn.ContactPair("b", "a")])
    with pytest.raises(ValueError, match="condim must be 1, 3, 4 or 6, got 2"):
        kn.ContactPair("a", "b", condim=2)
    with pytest.raises(ValueError, match="friction takes 1 to 3 finite numbers"):
        kn.ContactPair("a", "b", friction=(-1.0,))


def test_a_slot_without_a_contact_stays_far_away_whatever_its_margin():
    boxes = [kn.Link(n, joints=kn.free(), mass=1.0, shapes=kn.shapes.box(0.1, 0.1, 0.1, margin=0.5)) for n in "ab"]
    model = kn.build(boxes)
    q = np.array([0, 0, 0, 1.0, 0, 0, 0, 0.3, 0.02, 0.05, 0.9, 0.1, 0.2, 0.3])
    gap = jax.jit(lambda q: collide(model, q, contact_pairs(model, self_collision=True)).gap)(q)
    assert np.all((np.asarray(gap) < 1.0) | (np.asarray(gap) >= INACTIVE_GAP))
