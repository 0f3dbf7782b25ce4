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
    """The C function of a step, called through a shared library."""

    def __init__(self, hybrid: Hybrid, folder):
        nq, nv = hybrid.model.nq, hybrid.model.nv
        native.export_c(stepper(hybrid), (np.zeros(nq), np.zeros(nv)), folder, "hybrid_step")
        subprocess.run([str(CC), *STRICT, "hybrid_step.c", "-o", "step.so", "-lm"], cwd=folder, check=True)
        found = re.search(r"WORKSPACE_BYTES (\d+)", (folder / "hybrid_step.h").read_text())
        assert found is not None
        self.call = ctypes.CDLL(str(folder / "step.so")).hybrid_step
        self.workspace = np.zeros(int(found[1]) // 8 + 1)

    def __call__(self, q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        after = np.full_like(q, np.nan), np.full_like(qd, np.nan)
        self.call(*(ctypes.c_void_p(a.ctypes.data) for a in (q, qd, *after, self.workspace)))
        return after


def stepper(hybrid: Hybrid):
    def hybrid_step(q, qd):
        after = hybrid.step(kn.State(q, qd))
        return after.q, after.qd

    return hybrid_step


def saved_and_loaded(hybrid: Hybrid, folder) -> Hybrid:
    save_hybrid(folder / "a.knuckle", **fields(hybrid))
    return load_hybrid(folder / "a.knuckle")


def test_a_pendulum_with_seven_networks_as_c(tmp_path):
    hybrid = HYBRIDS["pendulum"]
    exported, expected = Exported(saved_and_loaded(hybrid, tmp_path), tmp_path), jax.jit(stepper(hybrid))
    rng = np.random.default_rng(0)
    for _ in range(20):
        q, qd = rng.normal(size=2), rng.normal(size=2)
        for found, wanted in zip(exported(q, qd), expected(q, qd), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)  # another order of sums


def test_five_links_with_contact_and_a_network_of_175_numbers_as_c(tmp_path):
    hybrid = touching_hybrid()
    exported, expected = Exported(saved_and_loaded(hybrid, tmp_path), tmp_path), native.jit(stepper(hybrid))
    rng = np.random.default_rng(0)
    touched = 0
    for _ in range(20):
        q = np.array([0.9516, 0, 0, 0, 0]) + 0.02 * rng.normal(size=5)  # the last ball at the ground
        qd = rng.normal(size=5)
        for found, wanted in zip(exported(q, qd), expected(q, qd), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)  # contact is solved to 1e-8 m/s
        touched += 1.5 - 0.5 * np.cos(np.cumsum(q)).sum() < 0.05
    assert 5 <= touched <= 15  # in some states it overlaps the ground, in others it does not
