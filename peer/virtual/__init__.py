"""The virtual swarm: round machines on a virtual clock and an in-memory network, everything from one seed.

The same class as in the daemon, with real statements, trees and codecs; small vectors in place of training.
"""

from __future__ import annotations

from .faults import Faults, Kill
from .invariants import Violation
from .peer import VirtualPeer
from .plan import Plan
from .wire import QuickScope
from .world import Outcome, World

__all__ = ["Faults", "Kill", "Outcome", "Plan", "QuickScope", "Violation", "VirtualPeer", "World"]
