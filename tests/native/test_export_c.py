"""Exported C: compiles without a warning, agrees with JAX, allocates nothing."""

import re
import shutil
import subprocess

import jax
import numpy as np
import pytest
from native_customers import CUSTOMERS

from knuckle import native

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
STRICT = ["-O2", "-std=c99", "-Wall", "-Wextra", "-Werror"]
EXPORTED = [
    "elementwise", "integers", "moves", "products in memory", "scattering", "indexing in memory", "while",
    "nested loops", "branches", "update in place", "swapped carries", "swapped carries in memory", "pendulum",
    "pendulum gradient", "linear algebra", "large linear algebra", "mlp", "lstm", "random numbers",
]  # fmt: skip


@pytest.fixture(autouse=True)
def jax_numpy_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def build(function, arguments, folder, name="exported"):
    native.export_c(function, arguments, folder, name)
    command = [str(CC), *STRICT, f"{name}.c", "example.c", "-o", "example", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "example"


def printed_numbers(text):
    return np.array([float(line.split(" = ")[1]) for line in text.splitlines()])


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_c_agrees_with_jax(name, tmp_path):
    function, arguments = CUSTOMERS[name]
    program = build(function, jax.tree.map(np.asarray, arguments), tmp_path)
    found = printed_numbers(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    leaves = jax.tree.leaves(jax.jit(function)(*arguments))
    expected = np.concatenate([np.asarray(leaf).astype(float).ravel() for leaf in leaves])
    scale = max(1.0, np.max(np.abs(expected[np.isfinite(expected)])))
    # 1e-12 of the terms; the large products add some hundred of them
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * scale)


def test_no_allocation_under_valgrind(tmp_path):
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("no valgrind")
    function, arguments = CUSTOMERS["pendulum gradient"]
    native.export_c(function, arguments, tmp_path, "gradient")
    quiet = re.sub(r"    for \(int i = 0;.*?\n.*?\n", "", (tmp_path / "example.c").read_text())  # printf allocates
    (tmp_path / "example.c").write_text(quiet.replace("#include <stdio.h>\n", ""))
    subprocess.run(
        [str(CC), *STRICT, "-g", "gradient.c", "example.c", "-o", "example", "-lm"], cwd=tmp_path, check=True
    )
    run = subprocess.run(
        [valgrind, "--error-exitcode=9", tmp_path / "example"], check=True, capture_output=True, text=True
    )
    assert "0 allocs, 0 frees, 0 bytes allocated" in run.stderr
    assert "ERROR SUMMARY: 0 errors" in run.stderr


def test_no_state_and_no_allocation_in_the_source(tmp_path):
    function, arguments = CUSTOMERS["mlp"]
    native.export_c(function, arguments, tmp_path, "net")
    source = (tmp_path / "net.c").read_text()
    assert not re.search(r"\b(malloc|calloc|realloc|alloca|free)\b", source)
    assert not re.search(r"^static (?!const)[^()]*(=|;)", source, re.MULTILINE)  # no mutable file-scope variables


def test_names_come_from_the_arguments(tmp_path):
    def step(state, double):
        return {"next": state["q"] * double, "switch": state["v"] > 0}

    native.export_c(step, ({"q": np.ones(2), "v": np.ones(3)}, np.array(2.0)), tmp_path)
    header = (tmp_path / "step.h").read_text()
    assert "const double *state_q" in header and "const double *double_," in header
    assert "double *out_next" in header and "uint8_t *out_switch" in header
    assert "STEP_WORKSPACE_BYTES" in header
    subprocess.run([str(CC), *STRICT, "-c", "step.c"], cwd=tmp_path, check=True)


def test_cmake_builds_it(tmp_path):
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    native.export_c(lambda x: x * 2, (np.ones(2),), tmp_path, "double_it")
    subprocess.run([cmake, "-S", tmp_path, "-B", tmp_path / "build"], check=True, capture_output=True)
    subprocess.run([cmake, "--build", tmp_path / "build"], check=True, capture_output=True)
    run = subprocess.run([tmp_path / "build" / "double_it_example"], check=True, capture_output=True, text=True)
    assert printed_numbers(run.stdout).tolist() == [2, 2]


def test_long_code_is_cut_into_functions(tmp_path):
    def function(x):
        for k in range(500):
            x = 0.9 * x + 0.002 * np.float64(k) * x[::-1] * x[0] - 0.2 * x[1] * x
        return x

    x = np.array([0.1, -0.2, 0.3, 0.05])
    program = build(function, (x,), tmp_path)
    assert (tmp_path / "exported.c").read_text().count("static void piece") >= 2
    found = printed_numbers(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    expected = function(x)
    assert np.all(np.abs(expected) > 1e-300)  # neither overflow nor all zero, or nothing would be compared
    np.testing.assert_allclose(found, expected, rtol=1e-11)  # relative errors add up over 500 products
