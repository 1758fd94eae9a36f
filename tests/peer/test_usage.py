"""What a peer takes of its owner's machine."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from peer import status as st
from peer.usage import LOOK_S, Usage, usable_cores

if TYPE_CHECKING:
    from pathlib import Path


def test_processor_and_disk_are_looked_at_now_and_then(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "state").write_bytes(bytes(1000))
    usage, now = Usage(tmp_path, 1, 20), 1000.0
    processes = st.Processes(st.Daemon(os.getpid(), 5))
    first = asyncio.run(usage.look(processes, now))
    assert (first.cpu, first.cores, first.threads, first.disk, first.disk_cap) == (None, usable_cores(), 1, 1000, 20)
    assert first.disk_free
    (tmp_path / "runs" / "state").write_bytes(bytes(3000))
    assert asyncio.run(usage.look(processes, now)) is first
    spent = os.times()
    while sum(os.times()[:2]) - sum(spent[:2]) < 0.06:
        pass
    now += LOOK_S
    second = asyncio.run(usage.look(processes, now))
    assert second.disk == 3000
    assert second.cpu is not None and 0.05 / LOOK_S <= second.cpu < 1


def test_a_process_that_ended_is_seen_at_once(tmp_path: Path) -> None:
    usage = Usage(tmp_path, 1, 20)
    both = st.Processes(st.Daemon(os.getpid(), 5), trainer=st.Child(2**31 - 1, 5))
    first = asyncio.run(usage.look(both, 1.0))
    assert asyncio.run(usage.look(both, 1.0)) is first
    assert asyncio.run(usage.look(st.Processes(st.Daemon(os.getpid(), 5)), 1.0)) is not first
