"""Freed memory is kept, and given back when asked. In processes of their own: it lasts."""

from __future__ import annotations

import subprocess
import sys

import pytest

FREEZING = "import gc; from peer.memory import spare_loaded; spare_loaded(); print(len(gc.get_objects()))"
PROGRAM = """
import gc, resource, sys
import numpy as np
import psutil
from peer.memory import give_back, keep_freed, reserve

size = 64 << 20
if sys.argv[1] != "leave":
    assert keep_freed()
if sys.argv[1] == "reserve":
    assert reserve(2 * size)
    assert not reserve(1 << 60)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(size, dtype=np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] != "reserve":
    faults()
print(faults())
held = psutil.Process().memory_info().rss
print(give_back())
print(held - psutil.Process().memory_info().rss)
"""


def test_what_is_loaded_is_no_garbage_to_be_looked_for() -> None:
    """In a process of its own: it lasts as well."""
    found = subprocess.run(
        [sys.executable, "-c", FREEZING],
        check=True, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert int(found.stdout) < 100


def program(what: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, what], check=True, capture_output=True, text=True, timeout=50
    )
    return found.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
@pytest.mark.parametrize("what", ["keep", "reserve"])
def test_freed_memory_is_used_again_without_page_faults_until_it_is_given_back(what: str) -> None:
    faults, gave, shrunk = program(what)
    assert int(faults) < 16
    assert gave == "True"
    assert int(shrunk) > 60 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_otherwise_each_large_piece_comes_from_the_kernel_anew() -> None:
    assert int(program("leave")[0]) >= 16
