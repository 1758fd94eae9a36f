"""What the ladder does about relays that hold nothing, and whom it believes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from dht.p2pd import P2pd, P2pdConfig
from peer.reaching import RELAY_PATIENCE_S, REPLACE_S, Reaching, Surroundings
from protocols.ids import PeerId

if TYPE_CHECKING:
    from pathlib import Path

RELAYS = tuple(f"/ip4/11.22.33.{number}/tcp/4002/p2p/relay{number}" for number in range(5))


@pytest.fixture
def p2pd(tmp_path: Path) -> P2pd:
    """One that is never started."""
    return P2pd(P2pdConfig(tmp_path, None))


def _reaching(p2pd: P2pd) -> Reaching:
    nothing: Any = None
    around = Surroundings(list, lambda: RELAYS, lambda: None, lambda _: None, lambda: False, lambda _: (), frozenset)
    return Reaching(PeerId("me"), p2pd, nothing, nothing, around, confined=False)


def test_relays_that_take_nothing_give_way_ever_more_slowly(p2pd: P2pd) -> None:
    """Before, the first two that somebody named were kept for good; and each restart costs every connection."""
    reaching, starts, tried = _reaching(p2pd), list[int](), set[str]()
    for now in range(0, 2 * 3600, 2):
        before = p2pd.relays
        reaching._reserve(float(now))
        if p2pd.relays != before:
            starts.append(now)
            tried |= set(p2pd.relays)
    assert tried == set(RELAYS)
    assert starts[:4] == [0, 20, 60, 140]
    assert all(later - sooner == RELAY_PATIENCE_S[1] for sooner, later in zip(starts[6:], starts[7:], strict=False))


def test_a_relay_that_takes_and_drops_makes_no_p2pd_restart_often(p2pd: P2pd) -> None:
    reaching, starts = _reaching(p2pd), 0
    for now in range(0, 3600, 2):
        before = p2pd.relays
        reaching._listen = (f"{p2pd.relays[0]}/p2p-circuit",) if p2pd.relays and now % 20 == 0 else ()
        reaching._reserve(float(now))
        starts += p2pd.relays != before
    assert starts < 12


def test_one_that_holds_stays_beside_others_that_are_tried_ever_more_slowly(p2pd: P2pd) -> None:
    reaching, starts = _reaching(p2pd), list[int]()
    reaching._reserve(0.0)
    holds = p2pd.relays[1]
    reaching._listen = (f"{holds}/p2p-circuit",)
    for now in range(0, 3600, 2):
        before = p2pd.relays
        reaching._reserve(float(now))
        assert holds in p2pd.relays
        if p2pd.relays != before:
            starts.append(now)
    assert 2 <= len(starts) <= 6 and starts[0] >= REPLACE_S[0] and reaching._patience == RELAY_PATIENCE_S[0]
    assert all(later - sooner > REPLACE_S[0] for sooner, later in itertools.pairwise(starts))
