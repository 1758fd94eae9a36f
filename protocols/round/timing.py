"""How long a round waits for what (protocol.md 5.3 to 5.10), in seconds.

Allowances count from local events on the monotonic clock and grow with failed views, so that
no two peers need to agree on a time. ``gossip`` and ``syncing`` hold a few more constants, of their own beats.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """The allowances of a round. ``growth`` multiplies them for each failed view, up to ``most`` times."""

    grace: float = 10.0
    """For others' commits after one's own, or after a third of the weight was ready."""
    patience: float = 0.5
    """The same as a share of one's own training time, where that is longer: machines differ."""
    roster: float = 15.0
    """For a coordinator's roster, from one's own ready on."""
    settle: float = 2.0
    """A coordinator that has a quorum of readys waits this long for the others'."""
    exchange: float = 20.0
    """Shortest exchange; also the time for a Gram after it."""
    slack: float = 5.0
    """The others give a coordinator this much longer than it gives reducers: its correction has to reach them."""
    reduce: float = 60.0
    """For what comes after the shortest time for the results: another reducer's, the proposal."""
    certificate: float = 20.0
    """For a quorum of votes, from the proposal on."""
    shrink: float = 5.0
    """How long those who are left wait for each other's ready before they go on without the rest."""
    fair: float = 10.0
    """A reducer that had served this long before it was put out was put out unjustly."""
    gone: float = 3.0
    """A closed stream that is not back by then counts as a peer that is gone."""
    chase: float = 2.5
    """Bytes that have not come are asked for again this often, or after an eighth of the exchange."""
    hurry: float = 0.5
    """The same, once, of a round that others have sealed already: they have long sent what this peer missed."""
    digest: float = 2.0
    """Neighbours compare what they hold this often."""
    growth: float = 1.5
    most: float = 5.0
    heard: float = 60.0
    """Readys older than this move nobody to another view."""
    idle: float = 120.0
    """Without a round for this long whoever does not vote follows a chain that goes on without members."""
    snapshot: float = 60.0
    """A donor keeps a state this long after it was last asked for it."""


NOMINAL_UP = 2_500
"""Uplink of whoever does not know its own, kB/s (20 Mbit/s)."""


def stretch(timing: Timing, failed: int) -> float:
    """The factor on all allowances after ``failed`` views in a row."""
    return min(timing.most, timing.growth ** min(failed, 64))


def exchange_time(timing: Timing, size: int, ups: list[tuple[int, float]], deadline: float) -> float:
    """X = 2·U/u: ``size`` U in bytes, u = lower quartile of ``ups`` (kB/s, 0 = unknown; weight) by weight."""
    known = sorted((up or NOMINAL_UP, weight) for up, weight in ups)
    quarter = sum(weight for _, weight in known) / 4
    slow = NOMINAL_UP
    for up, weight in known:
        slow = up
        quarter -= weight
        if quarter <= 0:
            break
    return clamp(timing, 2 * size / (1000 * slow), deadline)


def reduce_time(timing: Timing, size: int, rows: int, ups: list[int], deadline: float) -> float:
    """Y = 2·n·U/Σ up of the reducers: ``size`` U in bytes of results, ``rows`` n."""
    return clamp(timing, 2 * rows * size / (1000 * (sum(up or NOMINAL_UP for up in ups) or NOMINAL_UP)), deadline)


def clamp(timing: Timing, seconds: float, deadline: float) -> float:
    """Between the shortest exchange and what the manifest allows."""
    return min(max(seconds, timing.exchange), max(deadline, timing.exchange))
