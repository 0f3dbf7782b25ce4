"""Every experiment runs with --quick, and what it computes is right."""

import importlib
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))


def test_all_ways_to_a_gradient_agree():
    """Forward, reverse and native to rounding; one-sided differences with h = 1e-7 to about 1e-5."""
    rows = importlib.import_module("gradient_times").main(["--quick"])
    for problem in {row["problem"] for row in rows}:
        gradients = {row["method"]: np.array(row["gradient"]) for row in rows if row["problem"] == problem}
        exact = gradients.pop("reverse")
        scale = np.abs(exact).max()
        np.testing.assert_allclose(gradients.pop("finite differences"), exact, atol=1e-4 * scale, err_msg=problem)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, exact, atol=1e-9 * scale, err_msg=f"{problem}, {name}")


def test_code_and_work_of_the_compiler_grow_no_faster_than_the_program():
    """Operations and bytes, which do not depend on what else the machine does; what the times are is in the results."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    growth = importlib.import_module("compile_growth")
    rows = growth.main(["--quick"])
    for name in growth.PROGRAMS:
        own = [row for row in rows if row["program"] == name]
        # from 4 to 8 links a chain also leaves the plane, and products with structural zeros become full
        assert growth.exponent(own, "operations") < 1.7, name
        if name.startswith("calls"):
            assert growth.exponent(own, "bytes") < 0.5, name
