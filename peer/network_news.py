"""The network's figures in the status document: peers, traffic, p2pd, seeds and how far clocks are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from . import status as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dht.p2pd import P2pd
    from dht.seeds import Seed

    from .reporter import Reporter

KINDS = ("direct", "punched", "relayed")


class NetworkNews:
    """Brings them to one reporter."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._answering: frozenset[str] = frozenset()

    def tell(self, kinds: Sequence[str], traffic: tuple[int, int], p2pd: P2pd) -> None:
        """``kinds``: of each connection one of ``KINDS``; ``traffic``: bytes (sent, received) since the start."""
        self._reporter.apply(st.Peers(len(kinds), *(kinds.count(each) for each in KINDS)))
        self._reporter.apply(st.Traffic(*traffic))
        processes = self._reporter.status.processes
        child = st.Child(p2pd.pid, _rss(p2pd.pid), p2pd.restarts)
        self._reporter.apply(st.Processes(processes.daemon, child, processes.trainer))

    def tell_seeds(self, seeds: Sequence[Seed]) -> bool:
        """How the seeds fare; whether one answers that did not."""
        for seed in seeds:
            self._reporter.apply(st.Seed(seed.address, seed.state, seed.error, seed.retry_s))
        before, self._answering = self._answering, frozenset(seed.address for seed in seeds if seed.state == "ok")
        self._tell_clock([seed.offset_s for seed in seeds if seed.offset_s is not None])
        return bool(self._answering - before)

    def _tell_clock(self, offsets: Sequence[float]) -> None:
        if offsets:
            worst = max(offsets, key=abs)
            text = f"this clock and a seed's are {abs(worst):.1f} s apart: the directory does without one of them"
            if all(each.text != text for each in self._reporter.status.warnings):
                self._reporter.warn("clock", text, "set this machine's clock (timedatectl set-ntp true)")
        elif any(each.code == "clock" for each in self._reporter.status.warnings):
            self._reporter.apply(st.Cleared("clock"))


def _rss(pid: int | None) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid is not None else None
    except psutil.Error:
        return None
