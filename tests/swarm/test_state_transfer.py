"""A newcomer gets the state from many donors at once, each chunk once, whatever some of them do (FC09, FC10, FC12)."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from peer.virtual.plan import keys
from peer.virtual.storage import Disk
from protocols import outer
from protocols.chain_payloads import ChainReply
from protocols.payloads import Pieces
from protocols.round import donating, settling, slots
from protocols.round.transfer import COMMON, COMMON_KEPT
from protocols.state_payloads import StateChunk, StateQueue
from tests.swarm.crowd import SCOPE, draw, lying, until, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from dht.memory import Frame
    from peer.virtual import VirtualPeer, World
    from peer.virtual.peer import Forge
    from protocols.ids import PeerId
    from protocols.messages import Seal
    from protocols.round.effects import Train, Window

CHUNK = 64
CHUNKS = 2 * -(-340 * 4 // CHUNK)
"""44: 22 of the parameters, as many of the momentum."""
WINDOW_S = 20.0
NEWEST = 2 * COMMON
"""The newest state that everybody keeps when a newcomer comes: results of all rounds before it are kept by nobody."""


class Line:
    """Every frame takes ``quick`` seconds, but states and results go one after another, ``chunk`` seconds a chunk.

    It is the donors' lines that are slow, or the ``joiners``'.
    """

    def __init__(self, made: World, chunk: float, *, quick: float = 0.05) -> None:
        self.chunks: list[tuple[PeerId, PeerId, int]] = []
        """(donor, joiner, index) of every chunk that went out."""
        self.places: dict[PeerId, list[int | None]] = {}
        """What each joiner was told of its place."""
        self.lost: Callable[[Frame], bool] = lambda _: False
        self.joiners: set[PeerId] = set()
        self._made, self._chunk, self._quick = made, chunk, quick
        self._free: dict[PeerId, float] = defaultdict(float)
        made.network.courier = self._carry

    def to(self, joiner: PeerId) -> Counter[int]:
        """How often each chunk went to a joiner."""
        return Counter(index for _, to, index in self.chunks if to == joiner)

    def _carry(self, frame: Frame) -> float | None:
        if self.lost(frame):
            return None
        if frame.kind == "state-queue":
            place = StateQueue.decode(frame.payload, sender="test").position
            self.places.setdefault(frame.to, []).append(place)
        if frame.kind == "state":
            self.chunks.append((frame.sender, frame.to, StateChunk.decode(frame.payload, sender="test").index))
        if frame.kind != "state" and (frame.kind != "results" or frame.to not in self.joiners):
            return self._quick
        now, end = self._made.clock.now, frame.to if frame.to in self.joiners else frame.sender
        size = 1.0
        if frame.kind == "results":  # int8: an eighth of the state in all
            sizes = self._made.living()[0].machine._ctx.result_sizes
            size = CHUNKS / 8 * len(Pieces.decode(frame.payload, sizes, sender="test").pieces) / len(sizes)
        self._free[end] = max(now, self._free[end]) + size * self._chunk
        return self._free[end] - now + self._quick


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(settling, "HISTORY", 14)


def trained(windows: list[tuple[PeerId, int]]) -> Callable[[PeerId, Train], Window]:
    """A trainer that notes (who, round)."""

    def train(peer: PeerId, effect: Train) -> Window:
        from protocols.round.effects import Window as Made

        windows.append((peer, effect.round))
        return Made(effect.drift + draw(peer, effect.parent, len(effect.base)), 25, 25 * 1024)

    return train


def grown(
    chunk: float, *, founders: int = 4, rounds: int = NEWEST + 2, window: float = WINDOW_S
) -> tuple[World, Line, list[tuple[PeerId, int]]]:
    """A swarm that has made so many rounds."""
    windows: list[tuple[PeerId, int]] = []
    made = world(founders, 9999, trainer=trained(windows), result_codec="int8")
    made.plan = replace(made.plan, pace=lambda peer, effect: window)
    line = Line(made, chunk)
    made.begin()
    until(made, lambda: made.newest().round >= rounds, 9999)
    return made, line, windows


def contributes(made: World, peer: PeerId) -> bool:
    return any(peer in each.sealed[-1].record.tokens for each in made.living() if each.sealed and each.peer != peer)


def synced(peer: VirtualPeer) -> list[int]:
    return [each.record.round for each in peer.sealed if each.record.synced]


def joined(made: World, within: float) -> VirtualPeer:
    """A newcomer that has come, and whose update counted in time."""
    peer = made.join()
    until(made, lambda: contributes(made, peer.peer), within)
    return peer


def alone_with(made: World, donor: VirtualPeer) -> VirtualPeer:
    """A newcomer whose only neighbour is this donor."""
    peer = made._add(Disk(keys(made.seed, len(made._numbers) + 1)[-1]))
    peer.start()
    made.network.connect(peer.peer, donor.peer)
    return peer


def test_a_download_longer_than_rounds_is_done_once_and_the_rounds_since_are_replayed() -> None:
    """FC09: 60 s of download, rounds of 20 s and less of everything else."""
    made, line, windows = grown(60 / CHUNKS)
    began, head = made.clock.now, made.newest().round
    peer = made.join()
    line.joiners = {peer.peer}
    until(made, lambda: contributes(made, peer.peer), 60 + 10 * 30)
    assert synced(peer) == [NEWEST]
    assert line.to(peer.peer) == dict.fromkeys(range(CHUNKS), 1), "each chunk once"
    assert len({donor for donor, to, _ in line.chunks if to == peer.peer}) == 4
    first = next(number for who, number in windows if who == peer.peer)
    assert first > head + 2, "it has not trained before it had the state"
    replayed = [each.record.round for each in peer.sealed if not each.record.synced]
    assert replayed[: first - NEWEST - 1] == list(range(NEWEST + 1, first))
    assert made.clock.now - began > 60


def test_rounds_of_a_second_are_caught_up_with_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "HISTORY", 40)
    made, line, _ = grown(10 * 4 / CHUNKS, window=0.5, rounds=42)
    peer = joined(made, 60)
    assert len(synced(peer)) == 1
    assert line.to(peer.peer) == dict.fromkeys(range(CHUNKS), 1)


def test_a_state_stays_as_long_as_somebody_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are so short that the states kept by everybody change several times during one download."""
    monkeypatch.setattr(settling, "HISTORY", 400)
    made, line, _ = grown(90 / CHUNKS, window=0.5)
    for each in made.living():
        each.machine._ctx.history.clear()  # of the rounds before it nobody has the results
    first = made.join()
    line.joiners = {first.peer}
    until(made, lambda: made.newest().round >= 5 * COMMON, 200)
    second = made.join()
    line.joiners.add(second.peer)
    until(made, lambda: bool(synced(first) and synced(second)), 300)
    for peer in (first, second):
        assert len(synced(peer)) == 1
        assert line.to(peer.peer).total() < 1.5 * CHUNKS, "it never began anew"
    assert made.newest().round > synced(first)[0] + (COMMON_KEPT // COMMON + 3) * COMMON


def test_a_run_that_is_young_is_replayed_from_the_manifest() -> None:
    made, line, windows = grown(1.0, rounds=4)
    peer = joined(made, 120)
    assert not synced(peer) and not line.chunks
    assert peer.sealed[0].record.round == 1
    assert (peer.peer, 1) not in windows


def test_a_donor_that_dies_between_the_vectors_costs_nothing_but_itself() -> None:
    """FC10: the last chunk of the parameters is here, none of the momentum."""
    made, line, _ = grown(0.6)
    peer = made.join()
    border = CHUNKS // 2

    def at_border() -> bool:
        return len(line.to(peer.peer)) >= border

    until(made, at_border, 60)
    donor = next(each for each in made.living() if each.peer == line.chunks[-1][0])
    others = [each for each in line.chunks if each[0] != donor.peer]
    assert others
    made.kill(donor, silent=True)
    until(made, lambda: bool(synced(peer)), 120)
    again = Counter(line.to(peer.peer)) - Counter(dict.fromkeys(range(CHUNKS), 1))
    assert again.total() <= 1, "only what was under way from it is asked of others"
    until(made, lambda: contributes(made, peer.peer), 400)


def bent_chain(liar: VirtualPeer) -> Forge:
    """FC12: its seals are of round 2,000,000."""

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        if kind != "chain":
            return None
        reply = ChainReply.decode(payload, SCOPE, sender="test")
        links = []
        for link in reply.links:
            body = replace(cast("Seal", link.proposal.body), round=2_000_000)
            links.append(replace(link, proposal=SCOPE.state(liar.peer, body, liar.disk.identity.sign)))
        return [(kind, replace(reply, links=tuple(links)).encode())]

    return bend


def bent_state(_liar: VirtualPeer) -> Forge:
    """FC12: NaN in place of numbers."""

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        if kind != "state":
            return None
        chunk = StateChunk.decode(payload, sender="test")
        nan = np.full(len(chunk.data) // 4, np.nan, dtype="<f4").tobytes()
        return [(kind, b"".join(bytes(each) for each in replace(chunk, data=nan).encode()))]

    return bend


def queue_for_ever(_liar: VirtualPeer) -> Forge:
    """Nobody is ever served."""

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        if kind == "state-queue":
            return [(kind, replace(StateQueue.decode(payload, sender="test"), position=3).encode())]
        return [] if kind == "state" else None

    return bend


@pytest.mark.parametrize(
    ("bend", "words"), [(bent_chain, "does not follow"), (bent_state, "not of seal"), (queue_for_ever, "")]
)
def test_a_liar_among_three_donors_costs_nothing_but_itself(bend: Callable[[VirtualPeer], Forge], words: str) -> None:
    made, line, _ = grown(0.5, founders=3)
    liar = made.living()[0]
    lying(made, liar.peer, bend(liar))
    began, peer = made.clock.now, made.join()
    until(made, lambda: bool(synced(peer)), 120)
    assert synced(peer) == [NEWEST]
    assert made.clock.now - began < 0.5 * CHUNKS + 15, "two donors' time, and no patience with the liar"
    refused = [error for who, sender, error in made.refused if who == peer.peer and sender == liar.peer]
    assert all(error.peer == liar.peer and words in error.text for error in refused)
    assert bool(words) == bool(refused)
    honest = Counter(index for donor, to, index in line.chunks if to == peer.peer and donor != liar.peer)
    assert honest == dict.fromkeys(range(CHUNKS), 1)
    assert np.isfinite(peer.sealed[-1].params).all()


def test_who_was_killed_at_70_percent_asks_only_for_the_rest() -> None:
    made, line, _ = grown(0.5)
    peer = made.join()
    until(made, lambda: len(peer.disk.part) >= 0.7 * CHUNKS, 60)
    before = len(peer.disk.part)
    assert before < CHUNKS
    made.kill(peer)
    fresh = made.restart(peer)
    until(made, lambda: bool(synced(fresh)), 120)
    twice = sum(line.to(peer.peer).values()) - CHUNKS
    assert twice <= 4, "a chunk of each donor was under way"
    until(made, lambda: contributes(made, peer.peer), 400)


def test_who_was_cut_off_for_a_minute_goes_on_where_it_was() -> None:
    made, line, _ = grown(0.5)
    peer = made.join()
    until(made, lambda: len(peer.disk.part) >= CHUNKS // 2, 60)
    made.network.part({peer.peer})
    until(made, lambda: peer.machine._ctx.sync is None, 60)
    assert peer.machine._ctx.joining.kept is not None
    made.network.heal()
    until(made, lambda: bool(synced(peer)), 120)
    assert synced(peer) == [NEWEST]
    again = line.to(peer.peer).total() - CHUNKS
    assert again <= 2 * 4, "what was asked of each donor around the cut"
    assert peer.machine._ctx.joining.kept is None


def test_a_damaged_chunk_on_the_disk_is_fetched_again() -> None:
    made, line, _ = grown(0.5)
    peer = made.join()
    until(made, lambda: len(peer.disk.part) >= CHUNKS // 2, 60)
    made.kill(peer)
    damaged = peer.disk.part[3]
    peer.disk.part[3] = replace(damaged, data=bytes(len(damaged.data)))
    fresh = made.restart(peer)
    made.rules.chunk_kept_once = lambda *_: None  # type: ignore[method-assign]
    until(made, lambda: bool(synced(fresh)), 120)
    assert any("damaged" in each.text for each in fresh.troubles)
    assert line.to(peer.peer)[damaged.index] == 2


def test_twelve_joiners_of_one_donor_wait_in_a_queue_and_are_told_their_places() -> None:
    made, line, _ = grown(0.4, founders=1, window=60.0)
    (donor,) = made.living()
    began = made.clock.now
    peers = [alone_with(made, donor) for _ in range(12)]
    served = 0

    def all_in() -> bool:
        nonlocal served
        figures = donor.machine.donating
        served = max(served, figures.served)
        assert figures.served <= slots.SLOTS and figures.waiting <= 12
        return all(synced(peer) for peer in peers)

    until(made, all_in, 1200)
    took, line_time = made.clock.now - began, 12 * CHUNKS * 0.4
    assert served == slots.SLOTS
    assert took <= 1.3 * line_time, f"{took:.0f} s of {line_time:.0f}"
    assert all(line.to(peer.peer) == dict.fromkeys(range(CHUNKS), 1) for peer in peers)
    places = [[place for place in line.places[peer.peer] if place] for peer in peers]
    assert {place for told in places for place in told} >= set(range(1, 11))
    assert all(told == sorted(told, reverse=True) for told in places), "nobody overtakes"
    until(made, lambda: donor.machine.donating.served == donor.machine.donating.waiting == 0, 1)


def test_a_founder_that_comes_late_drops_what_it_trained_on_seal_0() -> None:
    """5.11: three seals have not taken it; nor is the window in progress of use."""
    made, _, windows = grown(0.3)
    late = made.living()[0]
    made.kill(late)
    late.disk.checkpoints.clear()
    fresh = made.restart(late)
    until(made, lambda: bool(synced(fresh)), 200)
    assert (fresh.peer, 1) in windows, "a founder trains at once"
    resync = next(each for each in fresh.sealed if each.record.synced)
    assert resync.head.round > COMMON and not resync.drift.any()
    until(made, lambda: contributes(made, fresh.peer), 400)
    (made_since,) = {number for who, number in windows[-40:] if who == fresh.peer and number > 1} and [True]
    assert made_since


def test_donors_keep_the_states_that_others_keep_and_no_more() -> None:
    made, _, _ = grown(0.3, rounds=4 * COMMON + 3, window=5.0)
    kept = [
        sorted(each.snapshot.head.round for each in peer.machine._ctx.giving.snapshots.values())
        for peer in made.living()
    ]
    assert all(each == [3 * COMMON, 4 * COMMON] or each == [2 * COMMON, 3 * COMMON, 4 * COMMON] for each in kept), kept


def test_of_large_states_only_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donating, "COMMON_BYTES", 1000)
    made, _, _ = grown(0.3, rounds=2 * COMMON + 1, window=5.0)
    for peer in made.living():
        assert [each.snapshot.head.round for each in peer.machine._ctx.giving.snapshots.values()] == [2 * COMMON]
