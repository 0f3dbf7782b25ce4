"""The command that compares derivatives of contact with differences, on a few states of its quicker scenes."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "check_contact_gradients.py"
spec = importlib.util.spec_from_file_location("check_contact_gradients", PATH)
assert spec is not None and spec.loader is not None
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)


@pytest.mark.parametrize("name", ["sphere, Impulse", "sphere, Compliant", "box on a plane, Impulse"])
def test_derivatives_are_right_away_from_changes_of_mode_and_never_nan(name):
    findings, _ = check.examine(name, 120, seed=1)
    assert not [f for f in findings if check.missed(f)]
    assert all(f.converged and f.finite for f in findings)
    compared = {f.mode for f in findings if f.margin > check.MARGIN}
    assert compared == set(check.MODES)


def test_derivatives_of_a_mechanism_with_limits_a_loop_a_mimic_and_dry_friction_are_right():
    findings, _ = check.examine("mechanism, Impulse without restitution", 60, seed=1)
    assert not [f for f in findings if check.missed(f)]
    assert all(f.converged and f.finite for f in findings)
    compared = {f.mode for f in findings if f.margin > check.MARGIN}
    assert compared >= {"apart", "stick", "slip"}
