"""A hybrid step as C: weights of the networks inside, the same numbers as `kn.step`."""

import ctypes
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle import native, neural
from knuckle.hybrid import Hybrid, load_hybrid, save_hybrid
from tests.hybrid.examples import HYBRIDS, KEY, fields
from tests.neural.examples import trained

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
STRICT = ["-O0", "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


def pendulum_of_five() -> kn.Model:
    """Rods of 0.5 m and 1 kg on hinges 1.5 m over the ground, with a ball at the end of each."""
    ball = kn.shapes.sphere(0.05, position=(0, 0, -0.5), friction=(0.5,), contype=1, conaffinity=0)
    ground = kn.shapes.plane(friction=(0.5,), contype=0, conaffinity=1)
    body = {"mass": 1.0, "com": (0, 0, -0.25), "inertia": (0.25 / 12, 0.25 / 12, 1e-3), "shapes": ball}
    links = [kn.Link("link0", joints=kn.revolute("y"), position=(0, 0, 1.5), **body)]
    for i in range(1, 5):
        links.append(kn.Link(f"link{i}", f"link{i - 1}", kn.revolute("y"), position=(0, 0, -0.5), **body))
    return kn.build(links, world_shapes=[ground])


def touching_hybrid() -> Hybrid:
    network = trained(neural.MLP((5, 10, 10), "elu", input_bias=True, key=KEY))
    assert network.size == 175
    residual = kn.Augment(network, ("q",), output_scale=1e-2)
    return Hybrid(pendulum_of_five(), kn.Blueprint({"next/state": residual}), kn.contact.Impulse(), dt=1e-3)


class Exported:
    """The C function of a step, called through a shared library; a state is all that persists, memory included."""

    def __init__(self, hybrid: Hybrid, state: kn.State, folder):
        native.export_c(lambda state: hybrid.step(state), (state,), folder, "hybrid_step")
        subprocess.run([str(CC), *STRICT, "hybrid_step.c", "-o", "step.so", "-lm"], cwd=folder, check=True)
        found = re.search(r"WORKSPACE_BYTES (\d+)", (folder / "hybrid_step.h").read_text())
        assert found is not None
        self.call = ctypes.CDLL(str(folder / "step.so")).hybrid_step
        self.workspace = np.zeros(int(found[1]) // 8 + 1)

    def __call__(self, state: kn.State) -> kn.State:
        leaves, tree = jax.tree.flatten(state)
        before = [np.ascontiguousarray(leaf, float) for leaf in leaves]
        after = [np.full_like(leaf, np.nan) for leaf in before]
        self.call(*(ctypes.c_void_p(array.ctypes.data) for array in (*before, *after, self.workspace)))
        return tree.unflatten(after)


def moved(state: kn.State, q: np.ndarray, qd: np.ndarray) -> kn.State:
    return kn.State(q, qd, state.impulse, state.memory)


def assert_near(found: kn.State, wanted: kn.State, tolerance: float) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def saved_and_loaded(hybrid: Hybrid, folder) -> Hybrid:
    save_hybrid(folder / "a.knuckle", **fields(hybrid))
    return load_hybrid(folder / "a.knuckle")


def test_a_pendulum_with_seven_networks_as_c(tmp_path):
    hybrid = HYBRIDS["pendulum"]
    expected = jax.jit(lambda state: hybrid.step(state))
    first = expected(kn.State(np.zeros(2), np.zeros(2)))
    assert first.memory is not None and len(first.memory) == 2  # a recurrent state, and a force of the step before
    exported = Exported(saved_and_loaded(hybrid, tmp_path), first, tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(10):
        found = wanted = moved(first, rng.normal(size=2), rng.normal(size=2))
        for _ in range(3):
            found, wanted = exported(found), expected(wanted)
        assert_near(found, wanted, 1e-12)  # sums in another order


def test_five_links_with_contact_and_a_network_of_175_numbers_as_c(tmp_path):
    hybrid = touching_hybrid()
    expected = native.jit(lambda state: hybrid.step(state))
    touching = np.array([0.9516, 0, 0, 0, 0])  # the last ball at the ground
    first = expected(kn.State(touching, np.zeros(5)))
    exported = Exported(saved_and_loaded(hybrid, tmp_path), first, tmp_path)
    rng = np.random.default_rng(0)
    overlaps = 0
    for _ in range(20):
        state = moved(first, touching + 0.02 * rng.normal(size=5), rng.normal(size=5))
        assert_near(exported(state), expected(state), 1e-9)  # contact is solved to 1e-8 m/s
        overlaps += 1.5 - 0.5 * np.cos(np.cumsum(state.q)).sum() < 0.05
    assert 5 <= overlaps <= 15  # in some states it overlaps the ground, in others it does not
