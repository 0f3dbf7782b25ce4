"""Networks at forces of the joints, where torques were measured: trained on residuals of the regression."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import sysid
from knuckle.deadline import Deadline
from knuckle.neural import MLP, Dissipative, Recurrent
from knuckle.optim import LeastSquares, Smooth
from knuckle.sysid.described import lacking
from knuckle.sysid.regression.filters import Filter
from knuckle.sysid.regression.learn import Residuals, first_weights, search
from knuckle.sysid.regression.networks import low_passed, unsuited
from knuckle.sysid.report import write_report
from knuckle.sysid.torque_fit import torque_gain

from .regression.driven import fourier, log, torques
from .test_torque_fit import MODEL, TRUE


def damping(seconds: float = 30.0) -> kn.Recording:
    """A log of an arm whose elbow has a damping that depends on its angle, 0.3 + 0.8 cos(q)^2 [N m s]."""
    rng, time = np.random.default_rng(0), np.arange(round(100 * seconds)) / 100
    q, qd, qdd = fourier(TRUE, time, 0)
    tau = torques(TRUE, q, qd, qdd)
    tau[:, 1] += 0.8 * np.cos(q[:, 1]) ** 2 * qd[:, 1]
    tau += 0.02 * np.sqrt(np.mean(tau**2, axis=0)) * rng.normal(size=tau.shape)
    q, qd = q + 1e-5 * rng.normal(size=q.shape), qd + 1e-4 * rng.normal(size=q.shape)
    return kn.Recording.of(MODEL, time, q=q, qd=qd, tau=tau)


def network(tap: str = "joint/force", seed: int = 0) -> kn.Blueprint:
    made = Dissipative(MODEL, (6,), structure="diagonal", key=jax.random.key(seed))
    return kn.Blueprint({tap: kn.Augment(made, ("q", "qd"))})


@pytest.fixture(scope="module")
def fitted() -> sysid.Fit:
    return kn.fit(MODEL, damping(), blueprint=network(), keep_networks=False, draws=1)


def test_a_network_that_explains_torques_is_kept(fitted):
    """The elbow's held-out torque error falls below half; what is left is noise of 2 % below the cut-off."""
    assert fitted.method.startswith("torque regression with networks on its residuals")
    assert any(note.startswith("the network at joint/force is kept") for note in fitted.notes), fitted.notes
    plain = sysid.regress(MODEL, damping(), terms=())
    elbow, before = fitted.regression.errors[1], plain.errors[1]
    assert elbow.held_out < 0.5 * before.held_out and elbow.training < 0.5 * before.training
    friction = [q for q in fitted.regression.parameters if q.name.endswith((".friction", ".damping"))]
    assert friction and all(np.isnan(q.lower) for q in friction)
    assert any("shared with the network" in note for note in fitted.remarks())


def test_forward_dynamics_with_the_network_undoes_inverse_dynamics(fitted):
    """To rounding, over one small step."""
    rng = np.random.default_rng(3)
    q, qd, qdd = rng.normal(size=(3, 5, 2))
    tau = fitted.regression.inverse_dynamics(q, qd, qdd)
    for k in range(5):
        options = {"dt": 1e-6, "integrator": kn.ExplicitEuler(), "contact": None, "blueprint": fitted.blueprint}
        after = kn.step(fitted.model, kn.State(q[k], qd[k]), tau[k], **options)
        np.testing.assert_allclose((np.asarray(after.qd) - qd[k]) / 1e-6, qdd[k], atol=1e-6)


def test_the_report_and_the_data_show_the_network(fitted, tmp_path):
    write_report(tmp_path, fitted)
    data, page = json.loads((tmp_path / "fit.json").read_text()), (tmp_path / "report.html").read_text()
    (shown,) = data["networks"]
    assert shown["tap"] == "joint/force" and shown["network"] == "Dissipative" and shown["size"] > 0.1
    assert len(shown["curves"]) == 2 and "what the network learned at elbow" in page
    assert any("the network at joint/force is kept" in note for note in data["notes"])
    assert lacking(fitted, friction=False) == ["the network at joint/force"]


def test_a_network_that_brings_nothing_is_left_out_and_said_to_be():
    run = log(TRUE, seconds=12, noise=0.02)
    fit = kn.fit(MODEL, run, blueprint=network(), keep_networks=False, draws=1)
    assert fit.regression is not None and fit.regression.layout.networks is None and fit.blueprint is None
    assert any("brought nothing and is left out" in note for note in fit.notes), fit.notes
    assert abs(fit["elbow.damping"].value - 0.3) < 0.03


def test_networks_go_with_the_regression_alone_too():
    """Without roll-outs held-out torques decide; networks that are insisted on stay, with a word."""
    fit = kn.fit(MODEL, log(TRUE, seconds=12, noise=0.02), blueprint=network(), loss="torque", draws=1)
    assert fit.held_out is None and fit.blueprint is not None
    assert any("kept as asked for" in note or "is kept;" in note for note in fit.notes), fit.notes


def test_gradients_serve_where_the_jacobian_is_large(monkeypatch):
    """L-BFGS-B removes at least a quarter of the squares that no network leaves."""
    found = sysid.regress(MODEL, damping(), terms=(), delay=0.0)
    with jax.enable_x64(True):
        problem = Residuals(found, network(), sysid.Regularise())
        counts, start = np.ones(len(problem.block)), np.zeros(problem.size)
        assert isinstance(problem.problem(counts, 1.0), LeastSquares)
        monkeypatch.setattr("knuckle.sysid.regression.learn.LARGEST", 0)
        posed = problem.problem(counts, 1.0)
        assert isinstance(posed, Smooth)
        before = posed.value_and_gradient(start)[0]
        start[: problem.weights] = first_weights(network(), (0, 0))
        assert search(posed, start, Deadline()).value < 0.75 * before


def test_which_networks_torques_can_train():
    def at(tap, made, inputs=("q", "qd"), **options):
        return kn.Blueprint({tap: kn.Augment(made, inputs, **options)})

    mlp = MLP((4, 3, 2), key=jax.random.key(0))
    assert unsuited(None) is None and unsuited(network("joint/passive_force")) is None
    for blueprint, why in (
        (at("joint/acceleration", mlp), "no force at the joints"),
        (at("joint/force", mlp, mode="scale"), 'mode "scale"'),
        (at("joint/force", MLP((3, 3, 2), key=jax.random.key(0)), ("q", "time")), "reads time"),
        (at("joint/force", Recurrent(4, 2, 3, key=jax.random.key(0))), "recurrent"),
    ):
        assert why in (unsuited(blueprint) or ""), why


def test_the_filter_of_the_training_is_that_of_the_regression():
    """Beyond the transients at the ends, to 1e-3 of the signal: extrapolation differs there."""
    x = np.cumsum(np.random.default_rng(0).normal(size=(800, 2)), axis=0) / 10
    low_pass = Filter(5.0, 100.0)
    with jax.enable_x64(True):
        found = np.asarray(low_passed(low_pass, jnp.asarray(x)))
    inside = slice(3 * low_pass.edge, -3 * low_pass.edge)
    np.testing.assert_allclose(found[inside], low_pass(x)[inside], atol=1e-3 * np.abs(x).max())


def test_joints_that_gain_and_lose_the_same_cancel():
    before, after = np.ones((2, 20)), np.stack([np.full(20, 0.25), np.full(20, 4.0)])
    gains, ratio = torque_gain(before, after)
    assert not gains and abs(ratio - 1) < 1e-12
    gains, ratio = torque_gain(before, replace_row(after, 1))
    assert gains and abs(ratio - 0.5**0.5) < 1e-12


def replace_row(squares: np.ndarray, row: int) -> np.ndarray:
    return np.where(np.arange(2)[:, None] == row, 1.0, squares)
