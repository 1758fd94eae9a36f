"""What this peer refuses: every limit with its use in the status, and a warning while something is being refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dht.limits import Gauge
from protocols.round.slots import QUEUE

from . import status as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocols.round.machine import Machine

    from .blob_exchange import BlobExchange
    from .reporter import Reporter

COMPLAIN_S = 60.0
"""What was refused is told at most this often, and the warning stays for so long."""
NAMED = 3
"""Limits that the warning names: those under which most was refused."""


class Refusals:
    """Collects the gauges of all parts that others can make work."""

    def __init__(self, reporter: Reporter, *sources: Callable[[], Iterable[Gauge]]) -> None:
        self._reporter, self._sources = reporter, list(sources)
        self._told: dict[str, int] = {}
        self._again = 0.0

    def watch(self, source: Callable[[], Iterable[Gauge]]) -> None:
        """Show these limits too."""
        self._sources.append(source)

    def tell(self) -> None:
        """Bring all limits into the status; call it often."""
        gauges = [gauge for source in self._sources for gauge in source()]
        self._reporter.apply(st.Limits({each.name: st.Limit(each.limit, each.in_use, each.refused) for each in gauges}))
        now = time.monotonic()
        if now < self._again:
            return
        new = {each.name: each.refused - self._told.get(each.name, 0) for each in gauges}
        self._told = {each.name: each.refused for each in gauges}
        if any(new.values()):
            self._again = now + COMPLAIN_S
            most = sorted((each for each in gauges if new[each.name]), key=lambda each: -new[each.name])
            parts = [f"{each.refused} {each.what}" for each in most[:NAMED]]
            text = "refused since the start: " + "; ".join(parts)
            self._reporter.warn("refused", text, "nothing, unless it goes on: the log names the peers")
        elif any(each.code == "refused" for each in self._reporter.status.warnings):
            self._reporter.apply(st.Cleared("refused"))


def blob_gauges(exchange: BlobExchange) -> list[Gauge]:
    """Requests for data that are answered now, and that wait."""
    (serving, waiting), limits = exchange.serving, exchange.limits
    return [
        Gauge("blobs", limits.at_once, "requests for data", serving),
        Gauge("blobs_waiting", limits.waiting, "requests for data found the queue full", waiting, exchange.refused),
    ]


def state_gauges(machine: Machine) -> list[Gauge]:
    """Joiners to whom the model's state is sent now, and that wait."""
    now = machine.donating
    return [
        Gauge("states", now.slots, "joiners", now.served),
        Gauge("states_waiting", QUEUE, "joiners found the queue for the state full", now.waiting, now.refused),
    ]
