"""The internet of this folder's tests. Each of them carries the marker ``network``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.network.natlab import Lab
from tests.network.rooms import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nobody can forget the marker. The hook sees the tests of all folders."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.network)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An empty internet, which ends with the test; skips where none can be made."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    with Lab() as made:
        yield made
