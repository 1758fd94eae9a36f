"""A crowd behind four routers joins at one lighthouse: all are let in, and the lighthouse stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.network.crowd import join

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab

JOINERS = 16
"""Few enough for two cores that have other things to do; ``tests/bench/lighthouse.py`` takes 64."""
MEMORY_BOUND = 500e6
"""Of the lighthouse's processes together; 700 MB with 64 peers."""


@pytest.mark.timeout(240)
def test_all_that_start_within_seconds_are_let_in(lab: Lab, tmp_path: Path) -> None:
    found = join(lab, tmp_path, JOINERS, span=8.0, within=100.0)
    assert len(found.in_after) == JOINERS, found
    assert found.health["answers"] > 50 and found.health["worst"] < 5.0, "it answered all the while"
    assert 100e6 < sum(found.memory.values()) < MEMORY_BOUND, found.memory
    refused = {each["name"]: each["refused"] for each in found.status["limits"] if each["refused"]}
    assert refused.keys() <= {"reach"}, "sixteen behind four addresses are no flood"
    assert found.status["relay"]["reservations"] == JOINERS
