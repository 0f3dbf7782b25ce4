"""All tests run in float64, with implicit promotions of type and rank turned into errors.

XLA compiles without its costly optimisations, which takes half the time, and by its older emitter of loops, which takes
a third of that: most programs here run once.

Programs of one file of tests share an MLIR context: JAX makes one for each, which takes a third of the time that a
single operation outside `jit` takes to compile.

Native code, too, is written without LLVM's optimisations where programs are many and run for a moment: that gives the
same bits (tests/native/test_lower.py says so) in a seventh of LLVM's time. The tests of native code itself and of what
runs long, and processes that tests start, compile it as a user's do.

Python looks for garbage less often: programs that JAX keeps are millions of objects, which each full look goes through
again, for a tenth of all time. Once in 20 million new ones, some gigabytes, is often enough.

Hypothesis sets no deadline: how long an example takes depends on what else the machine does.
"""

import functools
import gc
import os
from pathlib import Path

import jax
import pytest
from hypothesis import settings
from jax._src.interpreters import mlir

from knuckle.native import compile as native_compiler
from tests.quick_xla import FLAGS

TESTS = Path(__file__).parent
MANY_SHORT_PROGRAMS = (
    "contact/",
    "control/",
    "cross_engine/",
    "dynamics/",
    "neural/",
    "prescribed/",
    "sysid/",
    "taps/",
    "test_cli",
    "test_experiments",
    "test_simulate_gradients",
    "torch/",
)  # folders and files
LONG_PROGRAMS = ("contact/test_closed_forms.py",)
LONGEST = ("test_cli_ray", "test_distributed", "test_docs", "test_experiments")  # files
EXHAUSTIVE = {line for line in (TESTS / "exhaustive.txt").read_text().splitlines() if not line.startswith("#")}

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)

_given_flags = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = FLAGS
jax.local_devices()  # reads the flags, once
if _given_flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = _given_flags

shared_context = mlir.make_ir_context = functools.cache(mlir.make_ir_context)
gc.set_threshold(100_000, 20, 10)
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="also run the costly variants in tests/exhaustive.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out costly variants; the longest come first: at the end they would leave a worker idle."""
    items.sort(key=lambda item: not item.path.name.startswith(LONGEST))
    if config.getoption("--exhaustive"):
        return
    costly = [item for item in items if item.nodeid.removeprefix("tests/") in EXHAUSTIVE]
    config.hook.pytest_deselected(items=costly)
    items[:] = [item for item in items if item not in costly]


def pytest_sessionfinish() -> None:
    """Python need not look for garbage at the end: in a long run that takes seconds."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def one_context_for_a_file():
    """Constants of programs stay in their context: it goes with the file."""
    yield
    shared_context.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def quick_native_code(request):
    file = request.path.relative_to(TESTS).as_posix()
    quick = file.startswith(MANY_SHORT_PROGRAMS) and file not in LONG_PROGRAMS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_compiler, "CODEGEN_LEVEL", 0 if quick else native_compiler.CODEGEN_LEVEL)
        yield
