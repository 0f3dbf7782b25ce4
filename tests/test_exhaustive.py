"""The list of costly variants names tests that exist."""

import pytest

from tests.conftest import EXHAUSTIVE, TESTS


@pytest.mark.parametrize("line", sorted(EXHAUSTIVE))
def test_a_costly_variant_is_a_test(line):
    path, name = line.split("::")
    assert f"def {name.split('[')[0]}(" in (TESTS / path).read_text()
