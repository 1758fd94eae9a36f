"""What all processes of this peer take of the machine, for its owner: processor, memory, disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from . import status_parts as st

if TYPE_CHECKING:
    from pathlib import Path

LOOK_S = 5.0
"""Between two looks: the processor time is the mean since the one before."""
WALK_SHARE = 200.0
"""Adding up the files of the home is done again after so many times as long as it took."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Usage:
    """Looks now and then; in between it says what it saw last."""

    def __init__(self, home: Path, threads: int, disk_cap: int) -> None:
        """``threads`` of the trainer, and ``disk_cap`` bytes for data, are what it is held to."""
        self._home = home
        self._seen = st.Machine(cores=usable_cores(), threads=threads, disk_cap=disk_cap)
        self._spent: dict[int, float] = {}
        self._looked, self._walk_at = 0.0, 0.0  # monotonic

    async def look(self, processes: st.Processes, now: float) -> st.Machine:
        """What these processes and the home take; ``now`` is monotonic."""
        pids = {each.pid for each in (processes.daemon, processes.p2pd, processes.trainer) if each.pid is not None}
        if pids == self._spent.keys() and now - self._looked < LOOK_S:
            return self._seen
        spent = {pid: _cpu_s(pid) for pid in pids}
        used = [seconds - self._spent[pid] for pid, seconds in spent.items() if pid in self._spent]
        cpu = max(0.0, sum(used)) / (now - self._looked) if used and now > self._looked else None
        if now >= self._walk_at:
            began = time.perf_counter()
            disk, free = await asyncio.to_thread(_disk, self._home)
            self._walk_at = now + max(LOOK_S, WALK_SHARE * (time.perf_counter() - began))
            self._seen = replace(self._seen, disk=disk, disk_free=free)
        self._seen = replace(self._seen, cpu=cpu)
        self._spent, self._looked = spent, now
        return self._seen


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far; 0 once it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _disk(home: Path) -> tuple[int | None, int | None]:
    """Bytes of all files of the home, and what is free on its disk."""
    size = 0
    for folder, _, names in os.walk(home):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # gone meanwhile
                continue
    try:
        return size, shutil.disk_usage(home).free
    except OSError:
        return size, None
