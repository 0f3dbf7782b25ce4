"""Uniform solids have MuJoCo's moments; shapes refuse sizes that mean nothing; meshes compare by content."""

import mujoco
import numpy as np
import pytest

import knuckle as kn
from knuckle.model.geometry import Geometry, Mesh, Shape
from tests.random_models import random_quaternion

SOLIDS = {
    "sphere": (0.3,),
    "capsule": (0.2, 0.4),
    "box": (0.1, 0.2, 0.3),
    "cylinder": (0.2, 0.5),
    "ellipsoid": (0.1, 0.2, 0.4),
}


@pytest.mark.parametrize("kind", SOLIDS)
def test_uniform_solids_have_the_moments_mujoco_gives_them(kind):
    quaternion = random_quaternion(np.random.default_rng(3))
    shape = Shape(kind, SOLIDS[kind], position=(0.3, -0.2, 0.1), rotation=quaternion)
    spec = mujoco.MjSpec()
    body = spec.worldbody.add_body(name="body")
    size = (*SOLIDS[kind], 0.0, 0.0)[:3]
    geom = body.add_geom(type=getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}"), size=size, mass=1.7)
    geom.quat = quaternion
    body.add_freejoint()
    compiled = spec.compile()
    R = np.zeros(9)
    mujoco.mju_quat2Mat(R, compiled.body_iquat[1])
    R = R.reshape(3, 3)
    expected = R @ np.diag(compiled.body_inertia[1]) @ R.T
    found = shape.moment(1.7)
    np.testing.assert_allclose(found[:3], np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(found[3:], expected[[0, 0, 1], [1, 2, 2]], atol=1e-12)


def test_a_link_takes_mass_distribution_from_its_only_shape():
    link = kn.Link("ball", joints=kn.free(), mass=2.0, shapes=kn.shapes.sphere(0.5, position=(1, 0, 0)))
    model = kn.build([link])
    np.testing.assert_array_equal(model.inertia.com, [[1, 0, 0]])
    np.testing.assert_allclose(model.inertia.moment, [[0.2, 0.2, 0.2, 0, 0, 0]])
    assert model.geometry.kind == ("sphere",) and model.geometry.link == (0,) and len(model.geometry) == 1


BAD = [
    (lambda: Shape("torus", (1, 2), name="wheel"), "torus"),  # type: ignore[arg-type]
    (lambda: kn.shapes.sphere(-1.0, name="wheel"), "positive"),
    (lambda: kn.shapes.sphere(0.0, name="wheel"), "positive"),
    (lambda: kn.shapes.sphere(np.nan, name="wheel"), "positive"),
    (lambda: Shape("box", (1.0, 2.0), name="wheel"), "3 positive sizes"),
    (lambda: kn.shapes.box(1, 1, 1, name="wheel", friction=(-1.0,)), "friction"),
    (lambda: kn.shapes.box(1, 1, 1, name="wheel", friction=(1.0,) * 4), "friction"),
]


@pytest.mark.parametrize("make, said", BAD)
def test_shapes_refuse_what_means_nothing_by_name(make, said):
    with pytest.raises(ValueError, match="wheel") as caught:
        make()
    assert said in str(caught.value)


def test_friction_left_out_is_filled_in():
    assert kn.shapes.sphere(1.0, friction=0.7).friction == (0.7, 0.005, 0.0001)


def test_meshes_are_equal_by_content():
    corners, faces = np.eye(3), np.array([[0, 1, 2]])
    assert Mesh(corners, faces) == Mesh(corners.copy(), faces)
    assert hash(Mesh(corners, faces)) == hash(Mesh(corners.copy(), faces))
    assert Mesh(corners, faces) != Mesh(2 * corners, faces)


def test_no_shapes_make_empty_arrays():
    empty = Geometry.of([])
    assert len(empty) == 0 and empty.position.shape == (0, 3) and empty.rotation.shape == (0, 4)
