"""The command that judges contact solvers by the laws written out in NumPy: its judgement, and two small scenes."""

import importlib.util
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from knuckle.contact.laws import Coulomb
from knuckle.contact.system import System

PATH = Path(__file__).parents[2] / "scripts" / "check_contact_problems.py"
spec = importlib.util.spec_from_file_location("check_contact_problems", PATH)
assert spec is not None and spec.loader is not None
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

MASS, MU = 2.0, 0.5
BOUNCES = {  # velocity of a point mass before an impulse, and the impulse on the cone and on the square over its mass
    "stick": ([-1.0, 0.2, 0.1], [1.0, -0.2, -0.1], [1.0, -0.2, -0.1]),
    "slip along a corner": ([-1.0, 3.0, 0.0], [1.0, -0.5, 0.0], [1.0, -0.5, 0.0]),
    "slip along the diagonal": ([-1.0, 3.0, 3.0], [1.0, -np.sqrt(0.125), -np.sqrt(0.125)], [1.0, -0.25, -0.25]),
    "apart": ([1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", BOUNCES)
def test_the_judge_knows_closed_forms_and_sees_what_is_wrong(name):
    before, cone, square = BOUNCES[name]
    system = System.of_matrix(jnp.eye(3) / MASS, jnp.array(before), (Coulomb(jnp.array([MU])),))
    for title, impulse in (("Impulse", cone), ("InteriorPoint()", square)):
        solver = check.SOLVERS[title]
        assert check.residual(system, MASS * np.array(impulse), solver) < 1e-15
        for wrong in 1e-6 * np.concatenate([np.eye(3), -np.eye(3)]):
            assert check.residual(system, MASS * (np.array(impulse) + wrong), solver) > 1e-7


def test_two_small_scenes_are_solved_by_every_solver(capsys):
    assert check.main(["--quick"]) == 0
    said = capsys.readouterr().out
    assert "unsolved" not in said
    assert all(title in said for title in (*check.SOLVERS, *check.QUICK))
