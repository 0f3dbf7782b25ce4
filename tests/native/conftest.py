"""Fixtures for tests of native code."""

import pytest

from knuckle.native import llvm


@pytest.fixture
def short_pieces(monkeypatch, tmp_path):
    """Code is cut as if it were six times as long, with a cache of its own: names of entries do not say so."""
    monkeypatch.setattr(llvm, "REGION_LIMIT", 5000)
    monkeypatch.setenv("KNUCKLE_CACHE", str(tmp_path))
