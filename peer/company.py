"""Says on the terminal when the first peer is connected, and when the last one has been gone for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reporter import Reporter

GONE_S = 10.0
"""A stream that breaks is usually back within seconds."""


class Company:
    """Remembers what was said last."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._said, self._alone_since = False, 0.0

    def tell(self, now: float) -> None:
        """Called every second or so; ``now`` is monotonic."""
        total = self._reporter.status.peers.total
        if total:
            self._alone_since = 0.0
        elif not self._alone_since:
            self._alone_since = now
        if total and not self._said:
            self._said = True
            text = f"connected to {total} peer{'s' * (total > 1)}"
            self._reporter.show(("ok", "network", text), event="connected", peers=total)
        elif self._said and self._alone_since and now - self._alone_since >= GONE_S:
            self._said = False
            text = "no peer is connected any more; it goes on trying"
            self._reporter.show(("warn", "network", text), event="disconnected", peers=0)
