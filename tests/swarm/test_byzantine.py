"""A random Byzantine scheduler finds no two conflicting final seals while less than a third lies, and else it does."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING

import pytest

from protocols import table
from protocols.chain_payloads import ChainReply, Link
from protocols.ids import Hash, PeerId
from protocols.messages import Ready, Seal, Vote
from protocols.payloads import Digest
from protocols.round import links, walking
from protocols.round.forks import prefer
from protocols.round.roster import SHRINK_AFTER
from protocols.table import STANDING, Member, Table
from tests.protocols import chains
from tests.swarm.judge import Broken
from tests.swarm.scheduler import Act, Arena, Node, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BLOCK = 25
SIZES = ((4, 1), (7, 2), (4, 1), (5, 1), (7, 2), (4, 1))
"""(founders, liars) by block."""
FOUND_WITHIN = 40
"""Runs in which the adversary must win where it can."""


def _play(block: int) -> None:
    count, liars = (10, 3) if block % 10 == 9 else SIZES[block % len(SIZES)]
    finals = sum(run(1000 * block + number, count, liars).finals for number in range(BLOCK))
    assert finals > BLOCK, "an adversary that lets nothing become final shows nothing"


@pytest.mark.parametrize("block", range(6))
def test_no_schedule_makes_two_final_seals_conflict(block: int) -> None:
    """150 runs."""
    _play(block)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", range(10, 90))
def test_no_schedule_makes_two_final_seals_conflict_in_many_runs(block: int) -> None:
    """2,000 runs."""
    _play(block)


def _falls(count: int, liars: int) -> bool:
    """Whether the adversary wins soon."""
    for seed in range(FOUND_WITHIN):
        try:
            run(seed, count, liars)
        except Broken as broken:
            assert "conflict" in str(broken)
            return True
    return False


@pytest.mark.parametrize(("count", "liars"), [(4, 2), (7, 3)])
def test_one_liar_too_many_is_enough_to_fork(count: int, liars: int) -> None:
    assert _falls(count, liars)


@pytest.mark.parametrize(("count", "liars"), [(5, 1), (7, 2)])
def test_a_majority_is_no_quorum(count: int, liars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that redteam.md 2 buried: the same adversary, more than 1/2 in place of more than 2/3."""
    two_thirds = table._exceed

    def exceed(some: list[float], whole: list[float], *, thirds: int) -> bool:
        return 2 * fsum(some) > fsum(whole) if thirds == table.QUORUM_THIRDS else two_thirds(some, whole, thirds=thirds)

    def half(whole: Mapping[PeerId, float], some: Iterable[PeerId]) -> bool:
        return 2 * fsum(whole[each] for each in set(some) if each in whole) > fsum(whole.values())

    monkeypatch.setattr(table, "_exceed", exceed)
    monkeypatch.setattr(links, "_two_thirds", half)
    assert _falls(count, liars)


# --- a lie that chance would not find ---------------------------------------------------------------


def _cut_off(arena: Arena) -> Node:
    """The others make final seals without this peer, which sees no quorum for three views."""
    victim = arena.honest[0]
    for node in arena.nodes:
        node.group = -1
    for node in (*arena.honest[1:], arena.faces[0]):
        node.group = 0
    arena.play(Act(400, 0.0, 0.0, frozenset(), frozenset()))
    assert arena.judge.finals, "the others go on"
    for _ in range(400):
        if victim.machine._ctx.round.barren >= SHRINK_AFTER:
            return victim
        arena.wait([victim])
    raise AssertionError("the peer that is cut off still waits")


def _shown(arena: Arena, victim: Node, members: Table, view: int) -> Hash:
    """A liar goes on alone, with a table of its own making, and shows that to the one that is cut off."""
    liar, anchor = arena.liars[0], arena.anchor
    others = tuple(sorted(each for each in arena.peers if each != liar))
    state = victim.machine._ctx.state_root
    body = Seal(view, anchor.seal, 1, Hash(bytes(32)), b"", (), (), (), (), others, members.root, state)
    name = arena.judge.proposed(body)
    link = Link(arena.lie(liar, body), (arena.lie(liar, Vote(view, name)),), members, ())
    digest = Digest(name, bytes(32)).encode()
    for _ in range(2):
        arena.time += 5.0
        arena.hand(victim, lambda now: victim.machine.payload(liar, "digest", digest, now))
    chain = ChainReply.fitting(anchor.seal, [link]).encode()
    arena.hand(victim, lambda now: victim.machine.payload(liar, "chain", chain, now))
    heard = arena.time
    while victim.machine.head.seal != name and arena.time < heard + 15.0:
        arena.wait([victim])  # it has asked others too, who do not answer
    return name


def _alone(arena: Arena) -> Table:
    return Table({each: Member(each, 1.0, STANDING, True, arena.anchor.seal, 0) for each in arena.liars})


def _among_all(arena: Arena) -> Table:
    heavy = {each: 1e6 if each in arena.liars else 1.0 for each in arena.peers}
    return Table({each: Member(each, heavy[each], STANDING, True, arena.anchor.seal, 0) for each in arena.peers})


@pytest.mark.parametrize("members", [_alone, _among_all])
def test_a_liar_that_goes_on_alone_makes_nothing_final(members: Callable[[Arena], Table]) -> None:
    """Whoever is cut off may follow it, for it cannot know better, but must not take its word for who votes."""
    arena = Arena(1, 4, 1)
    arena.begin()
    victim = _cut_off(arena)
    name = _shown(arena, victim, members(arena), view=40)
    assert victim.machine.head.seal == name, "it is followed"
    before = arena.judge.finals
    ready = arena.lie(arena.liars[0], Ready(41, name, 40, (), b"", 0, ()))
    arena.hand(victim, lambda now: victim.machine.receive(ready, arena.liars[0], now))
    assert arena.judge.finals == before
    assert victim.machine._ctx.chain.final is None


def test_a_final_seal_is_not_left_for_an_older_one_with_more_votes() -> None:
    """Two of ten are lost, two of the other eight lie: six votes are a quorum, seven are final.

    Five honest voted for the older seal too and never saw its certificate; then the newer one became final, and only
    one of them was told. The others must not leave it when the older certificate comes out.
    """
    ten = chains.PEERS[:10]
    start = chains.zero(ten)
    start = replace(start, table=start.table.without(ten[8:]))
    honest, liars = ten[:6], ten[6:8]
    older = chains.child(start, [*honest[:5], *liars], view=1, salt=b"older")
    newer = chains.child(start, [*honest[1:5], *liars], view=2, salt=b"newer")
    assert walking.is_final(newer, chains.readys(newer, [*honest[:5], *liars]))
    assert not prefer(walking.Branch((newer,)), walking.Branch((older,)), start)
