"""Contact knows no axes: a scene that is turned as a whole moves as before, turned."""

import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant, Impulse

STEPS, DT = 200, 5e-3
STARTS = {
    "box slides to rest": ([0, 0, 0.1], [1.0, 0.4, 0, 0, 0, 1.5]),
    "ball rolls": ([0, 0, 0.1], [1.0, -0.3, 0, 2.0, 5.0, 3.0]),
}
SHAPES = {"box slides to rest": kn.shapes.box(0.15, 0.1, 0.1), "ball rolls": kn.shapes.sphere(0.1)}


def run_turned(scene: str, contact, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and orientations of a body on a plane, all turned by a quaternion, and turned back at the end."""
    R = np.asarray(kn.spatial.rotation_of_quaternion(jnp.asarray(turn)))
    link = kn.Link("body", joints=kn.free(), mass=1.0, shapes=SHAPES[scene])
    ground = [kn.shapes.plane(rotation=tuple(turn))]
    model = kn.build([link], gravity=tuple(R @ np.array([0, 0, -9.81])), world_shapes=ground)
    position, velocity = (np.array(x, float) for x in STARTS[scene])
    state = kn.State(np.concatenate([R @ position, turn]), np.concatenate([R @ velocity[:3], velocity[3:]]))
    run = kn.rollout(model, state, dt=DT, steps=STEPS, contact=contact, native=True)
    assert run.contact is not None and bool(run.contact.converged.all())
    back = turn * np.array([1, -1, -1, -1])
    turned = np.array([kn.spatial.quaternion_product(jnp.asarray(back), q) for q in jnp.asarray(run.q[::20, 3:])])
    return np.asarray(run.q[:, :3]) @ R, turned


@pytest.mark.parametrize(
    "contact", [Impulse(), Impulse(smoothing=0.01), Compliant()], ids=["hard", "relaxed", "springy"]
)
@pytest.mark.parametrize("scene", STARTS)
def test_a_turned_scene_moves_as_before(scene, contact):
    """About the vertical, and with ground and gravity about any axis."""
    rng = np.random.default_rng(5)
    turns = [np.array([np.cos(a / 2), 0, 0, np.sin(a / 2)]) for a in (0.4, np.pi / 2, 2.9)]
    turns += [q / np.linalg.norm(q) for q in rng.normal(size=(3, 4))]
    place, posture = run_turned(scene, contact, np.array([1.0, 0, 0, 0]))
    assert np.linalg.norm(place[-1] - place[0]) > 0.05
    for turn in turns:
        other, turned = run_turned(scene, contact, turn)
        np.testing.assert_allclose(other, place, atol=1e-8)
        np.testing.assert_allclose(turned, posture, atol=1e-8)
