"""The primitive `native_call` under JAX's transformations, and the layout of XLA's call frame."""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from knuckle.native import trampoline
from knuckle.native.ffi import TARGET, Program

CLOSE: dict[str, Any] = {"rtol": 1e-13, "atol": 1e-14}  # a few roundings: both sides do the same sums, in another order


def energy(x, p):
    """A scalar, a vector and an unmoving output of a vector and a number."""
    swing = jnp.sin(x) * p + jnp.cos(x[::-1] * p)
    return (swing * x).sum() + jnp.exp(-p), jnp.outer(x, swing)[0], jnp.arange(3.0)


def native(function):
    """The function of flat arguments through native_call, one program per signature."""
    programs: dict[Any, Program] = {}

    def call(*arguments):
        key = tuple((jnp.shape(x), jnp.result_type(x)) for x in arguments)
        if key not in programs:
            programs[key] = Program(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(*k) for k in key)))
        results = programs[key](*arguments)
        return jax.tree.unflatten(jax.tree.structure(jax.eval_shape(function, *arguments)), results)

    return call


X, P = np.array([0.3, -1.2, 2.0]), np.array(0.7)
XS, PS = np.random.default_rng(0).standard_normal((5, 3)), np.linspace(0.2, 1.0, 5)
fast = native(energy)


def assert_close(got, expected) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), got, expected)


def scalar(function):
    return lambda *arguments: function(*arguments)[0]


def test_numpy_in_numpy_out_and_jax_in_jax_out():
    assert all(type(leaf) is np.ndarray for leaf in fast(X, P))
    assert all(isinstance(leaf, jax.Array) for leaf in fast(jnp.asarray(X), P))
    assert_close(fast(X, P), energy(X, P))
    assert_close(fast(jnp.asarray(X), P), energy(X, P))


TRANSFORMED = {
    "jit": lambda f: jax.jit(f)(X, P),
    "jvp": lambda f: jax.jvp(f, (X, P), (X * 2, P + 1)),
    "jvp in one argument": lambda f: jax.jvp(lambda x: f(x, P), (X,), (X + 1,)),
    "linearize": lambda f: jax.linearize(f, X, P)[1](X + 1, P),
    "grad": lambda f: jax.grad(scalar(f), (0, 1))(X, P),
    "value and grad under jit": lambda f: jax.jit(jax.value_and_grad(scalar(f), (0, 1)))(X, P),
    "vjp of all outputs": lambda f: jax.vjp(f, X, P)[1]((1.5, X - 1, np.ones(3))),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1))(X, P),
    "jacrev": lambda f: jax.jacrev(f, (0, 1))(X, P),
    "hessian": lambda f: jax.hessian(scalar(f), (0, 1))(X, P),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(scalar(f)))(X, P),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(scalar(f)))(X, P),
    "third derivative": lambda f: jax.jacfwd(jax.hessian(scalar(f)))(X, P),
    "vmap": lambda f: jax.vmap(f)(XS, PS),
    "vmap over one": lambda f: jax.vmap(f, (0, None))(XS, P),
    "vmap over the last axis": lambda f: jax.vmap(f, (1, None), (0, 1, 1))(XS.T, P),
    "vmap of grad": lambda f: jax.vmap(jax.grad(scalar(f), (0, 1)), (0, None))(XS, P),
    "grad of vmap": lambda f: jax.grad(lambda x, p: jax.vmap(scalar(f), (0, None))(x, p).sum(), (0, 1))(XS, P),
    "hessian of vmap": lambda f: jax.hessian(lambda p: jax.vmap(scalar(f), (0, None))(XS, p).sum())(P),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(XS, PS),
    "vmap of vmap over one": lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0))(XS, PS),
    "grad of vmap of vmap": lambda f: jax.grad(
        lambda x, p: jax.vmap(jax.vmap(scalar(f), (None, 0)), (0, None))(x, p).sum(), (0, 1)
    )(XS, PS),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(scalar(f)), (0, 1))(X, P),
    "hessian of checkpoint": lambda f: jax.hessian(jax.checkpoint(scalar(f)))(X, P),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_agree_with_jax(name):
    got, expected = (jax.jit(lambda f=f: TRANSFORMED[name](f))() for f in (fast, energy))
    assert_close(got, expected)


@pytest.mark.parametrize("name", ["grad", "vmap of grad", "jvp"])
def test_transformations_without_jit(name):
    assert_close(TRANSFORMED[name](fast), jax.jit(lambda: TRANSFORMED[name](energy))())


def rollout(step):
    """A loss over steps of a loop."""

    def loss(x, p):
        def body(state, _):
            return state * 0.9 + 0.05 * step(state, p)[1], step(state, p)[0]

        last, losses = jax.lax.scan(body, x, None, length=6)
        return losses.sum() + (last**2).sum()

    return loss


@pytest.mark.parametrize("derivative", [lambda f: f, jax.grad, jax.jacfwd, jax.hessian])
def test_inside_a_scan(derivative):
    assert_close(jax.jit(derivative(rollout(fast)))(X, P), jax.jit(derivative(rollout(energy)))(X, P))


def test_inside_cond_and_while():
    def program(step):
        def run(x):
            x = jax.lax.cond(x[0] > 0, lambda x: step(x, P)[1], lambda x: x, x)
            return jax.lax.while_loop(lambda x: (x**2).sum() > 0.1, lambda x: 0.5 * step(x * 0.1, P)[1], x)

        return jax.jit(run)(X)

    assert_close(program(fast), program(energy))


def test_derivatives_against_finite_differences():
    # order 2 in both modes; JAX's default tolerance for float64 differences
    check_grads(scalar(fast), (X, P), order=2, modes=("fwd", "rev"))


def test_integers_and_booleans_pass_through_derivatives():
    def mixed(x, n, flag):
        return jnp.where(flag, x * n.astype(x.dtype), x), n + 1, ~flag

    n, flag = np.array([1, 2, 3], np.int32), np.array([True, False, True])
    call = native(mixed)
    assert_close(call(X, n, flag), mixed(X, n, flag))
    assert_close(jax.grad(lambda x: call(x, n, flag)[0].sum())(X), jax.grad(lambda x: mixed(x, n, flag)[0].sum())(X))
    tangents = (X, np.zeros(3, jax.dtypes.float0), np.zeros(3, jax.dtypes.float0))
    got, expected = jax.jvp(call, (X, n, flag), tangents), jax.jvp(mixed, (X, n, flag), tangents)
    assert_close(got[0], expected[0])
    assert_close(got[1][0], expected[1][0])
    assert got[1][1].dtype == jax.dtypes.float0


def test_an_output_that_does_not_move_has_a_zero_tangent():
    _, tangent = jax.jvp(lambda x: fast(x, P)[2], (X,), (X,))
    np.testing.assert_array_equal(tangent, np.zeros(3))


def test_float32_stays_float32():
    x, p = X.astype(np.float32), np.float32(0.7)
    assert fast(x, p)[0].dtype == np.float32
    assert jax.grad(scalar(fast))(x, p).dtype == np.float32


def test_stays_native_under_jit_and_grad():
    text = jax.jit(jax.vmap(jax.grad(scalar(fast)), (0, None))).lower(XS, P).as_text()
    assert 1 <= text.count(f"@{TARGET}(") <= 2  # the backward program, and the value that nobody asked for
    assert "callback" not in text and "sine" not in text


def test_other_platforms_run_the_jaxpr():
    text = jax.jit(jax.vmap(scalar(fast), (0, None))).trace(XS, P).lower(lowering_platforms=("cuda",)).as_text()
    assert TARGET not in text and "sine" in text


def operations(program: Program) -> int:
    code: Any = program.function().code
    return sum(code.kinds.values())


def test_a_gradient_has_the_operations_of_differentiating_inside():
    def inside(x, p, cotangent):
        return jax.vjp(lambda x: energy(x, p)[0], x)[1](cotangent)[0]

    around = jax.make_jaxpr(jax.grad(scalar(fast)))(X, P)
    (backward,) = [eqn.params["program"] for eqn in around.eqns if eqn.outvars[0] in around.jaxpr.outvars]
    assert operations(backward) <= 1.05 * operations(
        Program(jax.make_jaxpr(inside)(X, P, P))
    )  # order of sums may differ


def test_large_batches_of_jax_arrays_give_the_same_bits_as_small_ones():
    program = Program(jax.make_jaxpr(energy)(X, P), (True, False))
    many = jnp.asarray(np.random.default_rng(1).standard_normal((5000, 3)))
    p = jnp.asarray(P)
    together = program(many, p)
    assert all(isinstance(leaf, jax.Array) for leaf in together)
    for start in (0, 4096):
        part = program(many[start : start + 16], p)
        jax.tree.map(lambda a, b, k=start: np.testing.assert_array_equal(a[k : k + 16], b), together, part)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(program)(many, p), together)


def test_python_numbers_beside_batches():
    times = native(lambda x, k: x * k)
    np.testing.assert_array_equal(jax.vmap(lambda x: times(x, 2.0))(jnp.arange(3.0)), [0.0, 2.0, 4.0])


def test_with_jit_switched_off():
    with jax.disable_jit():
        assert_close(fast(jnp.asarray(X), P), energy(X, P))
        assert_close(jax.grad(scalar(fast))(X, P), jax.grad(scalar(energy))(X, P))


def test_programs_are_derived_once():
    program = Program(jax.make_jaxpr(energy)(X, P))
    assert program.tangent_map((True, False)) is program.tangent_map((True, False))
    assert program.over_batch((True, False)) is program.over_batch((True, False))


def test_tracers_that_a_function_closes_over_are_differentiated():
    def value(p):
        return native(lambda x: energy(x, p)[0])(X)

    assert_close(jax.grad(value)(P), jax.grad(scalar(energy), 1)(X, P))
    assert_close(jax.vmap(value)(PS), jax.vmap(scalar(energy), (None, 0))(X, PS))
    assert_close(jax.jit(value)(P), energy(X, P)[0])


@pytest.mark.parametrize("length", [10, 1000])
def test_small_and_large_workspaces(length):
    def sums(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.cumsum(y), jnp.outer(x, jnp.ones(length)).ravel())

    whole = np.arange(3.0)  # sums of whole numbers are exact in any order
    np.testing.assert_array_equal(jax.jit(native(sums))(whole), sums(whole))


def test_wrong_shapes_are_named():
    program = Program(jax.make_jaxpr(energy)(X, P))
    with pytest.raises(TypeError, match=r"argument 0: expected float64\[3\], got float64\[4\]"):
        program(jnp.zeros(4), P)
    with pytest.raises(TypeError, match=r"argument 1: expected float64\[\], got float32\[\]"):
        jax.jit(program)(X, np.float32(1))


def test_batch_sizes_must_agree():
    program = Program(jax.make_jaxpr(energy)(X, P), (True, True))
    with pytest.raises(ValueError, match=r"one batch size .* got \[4, 5\]"):
        program(jnp.asarray(XS), jnp.zeros(4))


def test_many_threads_call_one_jitted_function():
    jitted = jax.jit(jax.value_and_grad(scalar(fast)))
    expected = [jax.value_and_grad(scalar(energy))(x, P) for x in XS]

    def hammer(k: int) -> bool:
        results = [jitted(XS[k % 5], P) for _ in range(200)]
        return all(
            np.allclose(got, want, **CLOSE) for r in results for got, want in zip(r, expected[k % 5], strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(hammer, range(16)))


SIZES = {"size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "int": ctypes.c_int, "uint32_t": ctypes.c_uint32}


def struct_of(header: str, name: str) -> type[ctypes.Structure]:
    """A ctypes structure with the fields that the header gives to the struct."""
    found = re.search(rf"struct {name} \{{(.*?)\n\}}", header, re.DOTALL)
    assert found, f"{name} is no longer in the header"
    fields = []
    for declaration in re.sub(r"//[^\n]*", "", found[1]).split(";"):
        if not declaration.strip():
            continue
        kind, field = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", declaration, re.DOTALL).groups()  # type: ignore[union-attr]
        fields.append((field, field_type(header, kind)))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def field_type(header: str, kind: str) -> Any:
    if kind.endswith("*"):
        return ctypes.c_void_p
    if kind in SIZES:
        return SIZES[kind]
    if re.search(rf"\}} {kind};", header) and not re.search(rf"struct {kind} \{{", header):
        return ctypes.c_int  # an enum
    alias = re.search(rf"typedef (\w+) {kind};", header)
    return SIZES[alias[1]] if alias else struct_of(header, kind)


def offset_of(structure: Any, path: list[str]) -> int:
    here = getattr(structure, path[0]).offset
    return here + (offset_of(dict(structure._fields_)[path[0]], path[1:]) if path[1:] else 0)


@pytest.mark.parametrize("name", trampoline.OFFSETS)
def test_offsets_are_those_of_the_header_that_jaxlib_ships(name):
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    struct_name, *path = name.split(".")
    assert offset_of(struct_of(header, struct_name), path) == trampoline.OFFSETS[name]


def test_interface_version_is_that_of_the_header():
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    version = tuple(int(re.search(rf"#define XLA_FFI_API_{part} (\d+)", header)[1]) for part in ("MAJOR", "MINOR"))  # type: ignore[index]
    assert version == trampoline.API_VERSION
    assert re.search(r"XLA_FFI_Extension_Metadata = (\d+)", header)[1] == str(trampoline.METADATA_EXTENSION)  # type: ignore[index]
