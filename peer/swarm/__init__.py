"""``murmur swarm``: real daemons in temporary homes on this machine, watched, checked and reported."""

from __future__ import annotations

from .command import run

__all__ = ["run"]
