"""Imports inside the package go down only.

The rule: each part of the package may import parts that stand before it in ORDER, and itself; an import inside a
function, or one for type checking only, counts like any other. `native` and `optim` import nothing of ours. `neural`
imports `taps` only, and only what stands above `simulate` may import `neural`: the physics never knows the learned
part. Only the command line (COMMANDS) and the package's own `__init__` import the package as a whole. Relative imports
stay within a part.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "knuckle"

PHYSICS = (
    "taps",
    "spatial",
    "tree",
    "model",
    "robots",
    "kinematics",
    "prescribed",
    "dynamics",
    "contact",
    "constraints",
    "forces",
)
STEPPING = ("quantities", "integrate", "trajectory", "simulate", "tap_list", "linear_map")
COMMANDS = (
    "cli_common",
    "cli_folder",
    "cli_parse",
    "cli_options",
    "cli_logs",
    "cli_networks",
    "cli_observe",
    "cli_search",
    "cli_sure",
    "cli_results",
    "cli_show",
    "cli_run",
    "cli_changed",
    "cli_fit",
    "cli_info",
    "cli_begin",
    "cli_write",
    "cli_simulate",
    "cli",
    "__main__",
)
ABOVE = ("neural", "hybrid", "sysid", "control", "layers", "torch", "render", "viewer", "envs", *COMMANDS)
ORDER = ("native", "optim", "interrupt", "deadline", *PHYSICS, *STEPPING, *ABOVE)
EXCEPTIONS: dict[str, tuple[str, ...]] = {"native": (), "optim": (), "neural": ("taps",)}
WHOLE = "knuckle"


def allowed(part: str) -> set[str]:
    """The parts that a part may import."""
    if part not in ORDER:
        raise ValueError(f"knuckle.{part} is not in ORDER of {Path(__file__).name}: say there where it stands")
    below = EXCEPTIONS.get(part, ORDER[: ORDER.index(part)])
    return {part, *below, *([WHOLE] if part in COMMANDS else [])}


def imports(part: str, depth: int, source: str) -> Iterator[tuple[int, str]]:
    """Line and part of every import of ours by a file `depth` folders below the package's own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == WHOLE:
                    yield node.lineno, [*alias.name.split("."), WHOLE][1]
        elif isinstance(node, ast.ImportFrom):
            path = (node.module or "").split(".")
            if node.level:
                yield node.lineno, part if node.level <= depth else WHOLE
            elif path == [WHOLE]:
                yield from ((node.lineno, alias.name if alias.name in ORDER else WHOLE) for alias in node.names)
            elif path[0] == WHOLE:
                yield node.lineno, path[1]


def violations(part: str, source: str, depth: int = 0) -> list[str]:
    may = allowed(part)
    return [f"line {line}: {part} imports {other}" for line, other in imports(part, depth, source) if other not in may]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path):
    if path == PACKAGE / "__init__.py":
        return
    depth = len(path.relative_to(PACKAGE).parts) - 1
    assert violations(part_of(path), path.read_text(), depth) == []


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("dynamics", "from knuckle.simulate import step"),
        ("dynamics", "def f():\n    from knuckle import simulate"),
        ("model", "import knuckle.kinematics as kinematics"),
        ("simulate", "from knuckle.neural.networks import mlp"),
        ("native", "from knuckle import spatial"),
        ("optim", "from knuckle.model.model import Model"),
        ("neural", "from knuckle.spatial import cross"),
        ("forces", "import knuckle as kn"),
        ("sysid", "from knuckle import load"),
        ("model", "from ..dynamics import aba"),
    ],
)
def test_an_import_that_goes_up_is_found(part: str, line: str):
    assert len(violations(part, line, depth=1)) == 1


def test_imports_that_go_down_pass():
    assert violations("dynamics", "import jax\nfrom knuckle.tree import rows\nfrom knuckle import spatial") == []
    assert violations("native", "from .ir import Graph\nfrom ..runtime import run", depth=2) == []


def test_a_part_of_unknown_place_is_refused():
    with pytest.raises(ValueError, match=r"knuckle\.gadgets is not in ORDER"):
        violations("gadgets", "")
