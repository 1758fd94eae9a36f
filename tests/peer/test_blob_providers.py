"""Whom to ask first, and whom to leave alone: with a clock that the test moves."""

from __future__ import annotations

from random import Random

from peer.blob_providers import LACKS_S, LAST_REST_S, LIAR_S, REMEMBERED, Providers
from protocols.ids import PeerId

ONE, TWO, THREE, FOUR = (PeerId(f"peer-{number}") for number in range(4))


def providers() -> Providers:
    return Providers(Random(7))


def test_who_delivered_comes_first_then_members_then_who_failed_least() -> None:
    known = providers()
    known.delivered(ONE, 100)
    known.failed(TWO, -1000.0, "was slow")
    assert known.ranked([TWO, THREE, ONE, FOUR], 0.0, first={FOUR}) == [ONE, FOUR, THREE, TWO]
    orders = {tuple(known.ranked([THREE, FOUR], 0.0)) for _ in range(50)}
    assert len(orders) == 2, "nobody can choose to be first among equals"


def test_rests_double_to_a_bound_and_end_with_a_success() -> None:
    known, rests, now = providers(), [], 0.0
    for _ in range(12):
        known.failed(ONE, now, "died")
        rests.append(next(rest for rest in range(1, 1000) if known.ranked([ONE], now + rest)))
        now += rests[-1]
    assert rests[0] <= 2
    assert 0.75 * LAST_REST_S <= rests[-1] <= 1.25 * LAST_REST_S + 1
    assert rests[5] > 2 * rests[3] > 2 * rests[0]
    known.delivered(ONE, 1)
    known.failed(ONE, now, "died again")
    assert known.ranked([ONE], now + 2)


def test_a_liar_rests_long_and_loses_its_rank() -> None:
    known = providers()
    known.delivered(ONE, 10**9)
    known.lied(ONE, 0.0, "another hash")
    assert known.ranked([ONE, TWO], LIAR_S / 2) == [TWO]
    assert known.trouble(LIAR_S / 2).startswith("another hash; asked again in ")
    assert known.ranked([ONE, TWO], 2 * LIAR_S) == [TWO, ONE]
    assert known.trouble(2 * LIAR_S) == ""


def test_what_a_provider_lacks_is_asked_for_again_ever_more_rarely() -> None:
    known = providers()
    known.lacks(ONE, "blob", 0.0)
    assert not known.may_have(ONE, "blob", LACKS_S[0] / 2)
    assert known.may_have(ONE, "other", 0.0) and known.ranked([ONE], 0.0) == [ONE]
    assert known.may_have(ONE, "blob", 2 * LACKS_S[0])
    for _ in range(10):
        known.lacks(ONE, "blob", 100.0)
    assert not known.may_have(ONE, "blob", 100.0 + LACKS_S[1] / 2)
    assert known.may_have(ONE, "blob", 100.0 + 2 * LACKS_S[1])


def test_strangers_cannot_fill_the_memory() -> None:
    known = providers()
    for number in range(3 * REMEMBERED):
        known.failed(PeerId(f"stranger-{number}"), 0.0, "was never there")
    assert len(known._records) == REMEMBERED
