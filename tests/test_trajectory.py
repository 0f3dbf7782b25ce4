"""What is printed and drawn of states, trajectories, and values in the shape of a model."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import knuckle as kn

DT = 0.01


@pytest.fixture(scope="module")
def model():
    rod = kn.shapes.capsule(0.02, 0.2, position=(0, 0, -0.2))
    links = [kn.Link("arm", joints=kn.revolute("y"), mass=1.0, shapes=rod)]
    return kn.build(links, actuators=[kn.motor("arm_joint")])


@pytest.fixture(scope="module")
def run(model):
    return kn.rollout(model, model.state(np.array([1.0])), dt=DT, steps=30, native=True)


def test_a_state_prints_its_values(model):
    assert repr(model.state(np.array([0.5]))) == "State(q=[0.5], qd=[0.])"
    many = kn.State(np.zeros(40), np.zeros(39), impulse=np.zeros(12))
    assert repr(many) == "State(q=float64[40], qd=float64[39], impulse of 12 rows)"


def test_a_trajectory_prints_its_length_and_its_end(run):
    assert repr(run).startswith("Trajectory(30 steps to 0.3 s; nq=1, nv=1, nu=1; last State(q=[")
    batch = jax.tree.map(lambda x: np.stack([x, x]), run)
    assert repr(batch) == "Trajectory(q float64[2,30,1], qd float64[2,30,1], control float64[2,30,1])"


def test_a_gradient_does_not_print_like_a_model(model):
    def end(model):
        return kn.rollout(model, model.state(np.array([1.0])), dt=DT, steps=3, native=True).q[-1, 0]

    gradient = jax.grad(end)(jax.tree.map(jnp.asarray, model))
    assert repr(gradient).startswith("Model-shaped values of 'model' (")
    largest = max(np.abs(np.asarray(x)).max(initial=0.0) for x in jax.tree.leaves(gradient))
    assert f"{largest:.3g}" in repr(gradient).partition("largest: ")[2].partition(", ")[0]
    assert repr(model).startswith("Model('model': 1 links")
    assert repr(eqx.filter_eval_shape(lambda m: m, model)).startswith("Model-shaped values")


def test_a_trajectory_draws_itself(run, model, tmp_path):
    figure = run.plot(title="swing")
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert {"angle [rad]", "speed [rad/s]", "energy [J]"} <= set(labels)
    path = run.animate(str(tmp_path / "out.gif"), fps=20, size=120)
    with Image.open(path) as film:
        assert film.n_frames == 7  # type: ignore[attr-defined]  # from 0.01 s to 0.3 s, twenty a second, both ends
        first = np.asarray(film.convert("RGB"), int)
        film.seek(6)
        assert np.abs(np.asarray(film.convert("RGB"), int) - first).max() > 100  # the arm moved
    moved = jax.tree.map(np.asarray, run)
    with pytest.raises(ValueError, match="give model="):
        moved.plot()
    assert moved.plot(model) is not None
    with pytest.raises(ValueError, match=r"writes \.gif"):
        run.animate(str(tmp_path / "out.avi"))
