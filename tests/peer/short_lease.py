"""``murmur`` with leases of a few seconds instead of two minutes: ``python -m tests.peer.short_lease up …``."""

from __future__ import annotations

import sys

from dht.directory import DirectoryTiming
from peer.cli import main

LIFETIME_S, REFRESH_S = 12, 3.0

if __name__ == "__main__":
    init = DirectoryTiming.__init__
    init.__defaults__ = (LIFETIME_S, REFRESH_S, *(init.__defaults__ or ())[2:])
    sys.exit(main())
