"""Every Python block of the README and of the documentation runs, and prints what the page says.

The blocks of a page run in order in one process of their own, as a reader would run them. A `text` block that follows a
Python block is what that block prints. Pages beside the README are compiled as tests are, without costly optimisations
of XLA.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick_xla import QUICK_XLA

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
MARK = "-- end of block --"


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Each Python block with the output that the page shows below it, if any."""
    found = [(match[1], match[2]) for match in BLOCK.finditer(text)]
    shown = [*found, ("", "")][1:]
    return [
        (code, below if kind == "text" else None)
        for (language, code), (kind, below) in zip(found, shown, strict=True)
        if language == "python"
    ]


def outputs(codes: list[str], folder: Path, options: dict[str, str]) -> list[str]:
    script = "".join(f"{code}\nprint({MARK!r})\n" for code in codes)
    environment = os.environ | options
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, env=environment)
    assert run.returncode == 0, f"{run.stderr}\n{script}"
    return run.stdout.split(f"{MARK}\n")[:-1]


def test_the_pages_are_found():
    assert {"README.md", "usage.md", "notation.md"} <= {page.name for page in PAGES}
    assert sum(len(blocks(page.read_text())) for page in PAGES) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_and_print_what_the_page_says(page: Path, tmp_path: Path):
    wanted = blocks(page.read_text())
    if not wanted:
        return
    options = {} if page.name == "README.md" else QUICK_XLA
    for (code, shown), printed in zip(wanted, outputs([code for code, _ in wanted], tmp_path, options), strict=True):
        assert shown is None or printed == shown, f"in {page.name}, the block\n{code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
