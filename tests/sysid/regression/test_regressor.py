"""The regressor of inverse dynamics, by identity and by another engine."""

import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.dynamics import rnea
from knuckle.dynamics.regressor import carried_columns, regressor
from knuckle.model.export_urdf import write
from knuckle.sysid.base_parameters import base_parameters, inertial
from knuckle.sysid.regressors import regressors


def states(model, count=10):
    rng = np.random.default_rng(0)
    step, qd, qdd = rng.normal(size=(3, count, model.nv))
    q = np.asarray(kn.native.vmap(lambda s: kn.retract(model, jnp.asarray(model.reference), s))(step))
    return q, qd, qdd


@pytest.mark.parametrize("name", ["arm", "cartpole", "quadruped"])
def test_forces_are_the_regressor_times_the_inertial_parameters(name):
    """Free base, prismatic and revolute joints; 1e-11 is rounding at forces of about 100 N m."""
    model = robots.load(name)
    q, qd, qdd = states(model)
    forces = np.asarray(kn.native.vmap(lambda *x: rnea(model, *x))(q, qd, qdd)) - np.asarray(model.armature) * qdd
    pi, columns = np.asarray(inertial(model)), carried_columns(model)
    parts = regressors(model, q, qd, qdd)
    for dof in range(model.nv):
        np.testing.assert_allclose(parts[dof] @ pi[columns[dof]], forces[:, dof], atol=1e-11)


def test_pinocchio_has_the_same_regressor():
    """Same joint frames, since the URDF is written from the model; second moments in another order. 1e-9 relative."""
    pinocchio = pytest.importorskip("pinocchio")
    rng, ends = np.random.default_rng(3), {"lower": -9.0, "upper": 9.0}
    joints = (
        kn.revolute("z", name="a", **ends),
        kn.prismatic((1, 1, 0), name="b", **ends),
        kn.revolute("y", name="c", **ends),
    )
    links = []
    for k, joint in enumerate(joints):
        com, size = rng.normal(size=3) * 0.1, rng.uniform(0.05, 0.3, 3)
        moments = tuple((size.sum() - size) * 0.1)
        above = {} if k == 0 else {"parent": f"link{k - 1}", "position": tuple(rng.normal(size=3) * 0.3)}
        links.append(kn.Link(f"link{k}", joints=joint, mass=1.0 + k, com=tuple(com), inertia=moments, **above))
    model = kn.build(links, actuators=[kn.motor(name, name=name) for name in "abc"])
    theirs = pinocchio.buildModelFromXML(write(model))
    data = theirs.createData()
    order = [0, 1, 2, 3, 4, 6, 9, 5, 7, 8]  # xx xy yy xz yz zz as xx yy zz xy xz yz
    found = kn.native.jit(lambda *x: regressor(model, *x))
    for q, qd, qdd in zip(*states(model, 4), strict=True):
        Y = pinocchio.computeJointTorqueRegressor(theirs, data, q, qd, qdd).reshape(model.nv, -1, 10)[:, :, order]
        ours = np.asarray(found(q, qd, qdd)).reshape(model.nv, -1, 10)
        np.testing.assert_allclose(ours, Y, atol=1e-9 * np.abs(Y).max())


def test_base_parameters_with_rotors_predict_forces_as_all_parameters_do():
    """Two sets of parameters with equal base parameters give equal forces, rotor inertia included."""
    model = robots.load("arm")
    joints = tuple(range(model.nv))
    base = base_parameters(model, rotors=joints)
    assert base.rotors == joints
    q, qd, qdd = states(model, 20)
    W = np.zeros((20, model.nv, base.matrix.shape[1]))
    for dof, (columns, part) in enumerate(zip(carried_columns(model), regressors(model, q, qd, qdd), strict=True)):
        W[:, dof, columns] = part
        W[:, dof, 10 * len(model.link_names) + dof] = qdd[:, dof]
    W = W.reshape(-1, W.shape[2])
    null = np.eye(W.shape[1]) - np.linalg.pinv(base.matrix) @ base.matrix
    assert np.abs(W @ null).max() < 1e-8 * np.abs(W).max()
    assert np.linalg.matrix_rank(W) == len(base)
