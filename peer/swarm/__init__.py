"""``murmur swarm``: real daemons in temporary homes on this machine, watched, checked and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..options import SwarmOptions

__all__ = ["run"]


def run(options: SwarmOptions) -> int:
    """The command; 0 only if every check holds. Raises ConfigError, EnvironmentFault."""
    if options.virtual:
        from ..virtual.command import run as start_virtual

        return start_virtual(options)
    from .command import run as start  # loads torch, which ``plan`` and ``victim`` do without

    return start(options)
