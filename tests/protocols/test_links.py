"""The chain of certified seals: what is kept, what is believed, and which of two branches wins."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.chain_payloads import MAX_LOCATOR, Link
from protocols.errors import LocalError, RemoteError
from protocols.ids import Hash, PeerId, digest, peer_id
from protocols.messages import Commit, Ready, Seal, Vote
from protocols.round import links
from protocols.round.chain import Head, seal_hash, seal_zero
from protocols.round.links import Branch, Chain, is_final, prefer, walk
from protocols.statements import Scope, Statement
from protocols.table import AWAY, LOST, STANDING, Member, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

SCOPE = Scope(b"r" * 32, "model")
ZERO = Hash(b"0" * 32)
SENDER = "whoever showed it"
PEERS = sorted(peer_id(digest(b"peer %d" % number)) for number in range(24))
FOUR, SIX = PEERS[:4], PEERS[:6]


def signed(peer: PeerId, body: Seal | Vote | Ready | Commit) -> Statement:
    """``walk`` gets statements whose signatures are checked already, so none is needed here."""
    return SCOPE.state(peer, body, lambda raw: bytes(64))


def zero(founders: Iterable[PeerId] = FOUR) -> Head:
    return seal_zero(SCOPE, founders, ZERO)


def child(
    parent: Head,
    voters: Iterable[PeerId],
    *,
    table: Table | None = None,
    view: int = 0,
    lost: tuple[PeerId, ...] = (),
    salt: bytes = b"",
) -> Head:
    """A seal on top of ``parent`` that ``voters`` voted for."""
    table = table or parent.table
    if lost:
        rows = {each: replace(table.members[each], state=LOST, since=parent.round + 1) for each in lost}
        table = Table({**table.members, **rows})
    body = Seal(
        view=view or parent.view + 1 + (6 if lost else 0),
        parent=parent.seal,
        round=parent.round + 1,
        roster=digest(b"roster", salt),
        freeze=b"",
        out=(),
        grams=(),
        contributions=(),
        results=(),
        lost=lost,
        table=table.root,
        state=ZERO,
    )
    name = seal_hash(SCOPE, body)
    votes = tuple(signed(each, Vote(body.view, name)) for each in sorted(voters))
    return Head(name, body.view, body.round, table, signed(FOUR[0], body), votes, parent.table)


def grown(start: Head, count: int, voters: Iterable[PeerId] = FOUR, salt: bytes = b"") -> list[Head]:
    heads = [start]
    for _ in range(count):
        heads.append(child(heads[-1], voters, salt=salt))
    return heads[1:]


def link(head: Head, final: tuple[Statement, ...] = ()) -> Link:
    assert head.proposal
    return Link(head.proposal, head.votes, head.table, final)


def ready(peer: PeerId, head: Head, view: int = 0) -> Statement:
    return signed(peer, Ready(view or head.view + 1, head.seal, head.view, (), b"", 0, ()))


def readys(head: Head, peers: Iterable[PeerId]) -> tuple[Statement, ...]:
    return tuple(ready(each, head) for each in peers)


def table_of(weights: dict[PeerId, float]) -> Table:
    return Table({each: Member(each, weight, STANDING, True, ZERO, 0) for each, weight in weights.items()})


def refused(start: Head, shown: list[Link], match: str) -> None:
    with pytest.raises(RemoteError, match=match) as caught:
        walk(SCOPE, start, shown, sender=SENDER)
    assert caught.value.peer == SENDER


# --- walking -----------------------------------------------------------------------------------------


def test_children_are_walked_one_after_another() -> None:
    start = zero()
    heads = grown(start, 5, FOUR[:3])
    branch = walk(SCOPE, start, [link(each) for each in heads], sender=SENDER)
    assert branch.heads == tuple(heads), "parent tables included"
    assert branch.final is None


def test_a_jump_needs_two_thirds_of_the_last_table_and_leaves_the_voters_table_open() -> None:
    start = zero()
    heads = grown(start, 5, FOUR[1:])
    branch = walk(SCOPE, start, [link(heads[2]), link(heads[4])], sender=SENDER)
    assert [each.seal for each in branch.heads] == [heads[2].seal, heads[4].seal]
    assert all(each.parent_table is None for each in branch.heads)
    short = replace(heads[4], votes=heads[4].votes[1:])
    refused(start, [link(short)], "lacks a quorum")
    strangers = table_of(dict.fromkeys(PEERS[3:9], 1.0))
    first = child(start, FOUR, table=strangers)
    refused(start, [link(child(first, PEERS[3:9]))], "lacks a quorum")
    assert walk(SCOPE, start, [link(first), link(child(first, PEERS[3:9]))], sender=SENDER).heads[-1].round == 2


def test_a_link_with_one_thing_wrong_is_refused() -> None:
    start = zero()
    good = child(start, FOUR)
    two = child(good, FOUR)
    assert good.proposal
    assert walk(SCOPE, start, [link(good)], sender=SENDER).heads == (good,)
    other = child(start, FOUR, salt=b"other")
    shown = link(good)
    refused(start, [replace(shown, votes=shown.votes[:2])], "lacks a quorum")
    refused(start, [replace(shown, votes=())], "lacks a quorum")
    refused(start, [replace(shown, votes=other.votes)], "votes for something else")
    refused(start, [replace(shown, votes=(shown.votes[0],) * 3)], "or twice")
    refused(start, [replace(shown, votes=(*shown.votes[:2], signed(PEERS[9], Vote(1, good.seal))))], "of strangers")
    refused(start, [replace(shown, votes=readys(good, FOUR))], "votes for something else")
    refused(start, [replace(shown, table=table_of({FOUR[0]: 1.0}))], "another table")
    refused(start, [replace(shown, proposal=ready(FOUR[0], good))], "no seal")
    refused(good, [link(other)], "does not follow")
    refused(two, [shown], "does not follow")
    late = child(replace(start, round=5), FOUR)
    refused(start, [link(late)], "does not follow")


def test_a_shrink_seal_stands_on_its_parent_alone() -> None:
    start = zero(SIX)
    last = grown(start, 2, SIX)[-1]
    shrink = child(last, SIX[:3], lost=tuple(SIX[3:]), view=last.view + 4)
    assert shrink.table.lost == tuple(SIX[3:])
    heads = walk(SCOPE, last, [link(shrink), link(child(shrink, SIX[:3]))], sender=SENDER).heads
    assert [each.round for each in heads] == [3, 4]
    refused(start, [link(shrink)], "its parent is not shown")
    refused(last, [replace(link(shrink), votes=shrink.votes[:2])], "lacks a quorum")
    refused(last, [link(child(last, SIX[:3], lost=tuple(SIX[3:]), view=last.view + 3))], "lacks a quorum")
    refused(last, [link(child(last, SIX[:2], lost=tuple(SIX[2:]), view=last.view + 6))], "lacks a quorum")
    refused(last, [link(child(last, SIX[:5], lost=(SIX[5],)))], "lacks a quorum")
    refused(last, [link(child(last, SIX[3:], lost=tuple(SIX[3:])))], "lacks a quorum")
    assert walk(SCOPE, last, [link(child(last, SIX[:1], lost=tuple(SIX[1:])))], sender=SENDER).shrinks
    # All of six voting make a shrink seal no more reachable by a jump.
    refused(start, [link(child(last, SIX, lost=tuple(SIX[3:])))], "its parent is not shown")


def test_a_final_seal_shows_the_readys_of_the_next_view() -> None:
    start = zero()
    one, two = grown(start, 2)
    assert is_final(one, readys(one, FOUR[:3]))
    assert not is_final(one, readys(one, FOUR[:2]))
    assert not is_final(one, [*readys(one, FOUR[:2]), ready(FOUR[2], one, one.view + 2)])
    assert not is_final(one, [*readys(one, FOUR[:2]), ready(FOUR[2], two, one.view + 1)])
    assert not is_final(one, readys(one, FOUR[:2]) * 2)
    branch = walk(SCOPE, start, [link(one, readys(one, FOUR[1:])), link(two)], sender=SENDER)
    assert (branch.final, branch.proof) == (one.seal, readys(one, FOUR[1:]))
    refused(start, [link(one, readys(one, FOUR[:2]))], "as final, and it is not")
    refused(start, [link(one, readys(two, FOUR))], "as final, and it is not")


def test_nothing_is_final_while_too_much_is_lost() -> None:
    last = zero(SIX)
    shrink = child(last, SIX[:3], lost=tuple(SIX[3:]))
    assert not is_final(shrink, readys(shrink, SIX[:3]))
    assert is_final(shrink, readys(shrink, SIX[:5])), "lost ones count when they are back"


# --- keeping -----------------------------------------------------------------------------------------


def test_only_children_are_appended() -> None:
    start = zero()
    one, two = grown(start, 2)
    chain = Chain(start)
    with pytest.raises(LocalError):
        chain.append(two)
    chain.append(one)
    chain.append(two)
    assert (chain.anchor, chain.head, chain.heads) == (start, two, (start, one, two))
    assert [chain.position(each.seal) for each in chain.heads] == [0, 1, 2]
    assert chain.position(ZERO) is None


def test_two_thousand_seals_are_kept_in_bounded_memory() -> None:
    chain = Chain(zero())
    for _ in range(2000):
        chain.append(child(chain.head, FOUR[:3]))
        assert chain.sizes()["links"] <= links.KEEP + 1
    assert chain.sizes() == {"links": links.KEEP + 1, "seals": 2001, "voters": 1}
    assert len(chain.locator()) <= MAX_LOCATOR


def test_hashes_are_forgotten_and_the_anchor_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REMEMBERED", 30)
    monkeypatch.setattr(links, "KEEP", 4)
    start = zero()
    heads = grown(start, 100)
    chain = Chain(start, heads)
    assert chain.sizes()["seals"] == 30
    assert chain.position(heads[50].seal) is None
    assert chain.position(heads[80].seal) == 81
    assert chain.position(start.seal) == 0
    assert chain.since([heads[50].seal, start.seal])[0] == start.seal
    assert chain.since([heads[50].seal]) == (None, [])


def test_an_asker_gets_few_links_and_those_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "KEEP", 8)
    start = zero()
    heads = grown(start, 50)
    chain = Chain(start, heads)
    chain.mark_final(heads[47].seal, readys(heads[47], FOUR))
    asked, shown = chain.since([ZERO, heads[20].seal, start.seal])
    assert asked == heads[20].seal
    branch = walk(SCOPE, heads[20], shown, sender=SENDER)
    assert [each.round for each in branch.heads] == [48, 49, 50], "the final one, the head's parent, the head"
    assert branch.heads[-1] == chain.head
    assert branch.final == heads[47].seal
    assert chain.since([chain.head.seal]) == (chain.head.seal, [])
    recent = chain.since([heads[44].seal])[1]
    assert recent[0].proposal is heads[45].proposal, "the child of the seal in common"


def test_the_newest_final_seal_stays_with_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "KEEP", 4)
    start = zero()
    heads = grown(start, 40)
    chain = Chain(start, heads[:6])
    assert chain.final is None
    chain.mark_final(heads[4].seal, readys(heads[4], FOUR))
    chain.mark_final(heads[3].seal, readys(heads[3], FOUR))
    chain.mark_final(ZERO, ())
    for head in heads[6:]:
        chain.append(head)
    assert chain.final is heads[4]
    assert chain.proof == readys(heads[4], FOUR)
    assert heads[4].seal in chain.locator()
    assert chain.sizes()["links"] == 6
    chain.mark_final(heads[38].seal, readys(heads[38], FOUR))
    assert chain.final is heads[38]
    assert chain.sizes()["links"] == 5, "the old one went"


def test_the_head_grows_by_late_votes() -> None:
    start = zero()
    one = child(start, FOUR[:3])
    more = replace(one, votes=child(start, FOUR).votes)
    chain = Chain(start, [one])
    chain.grow(more)
    chain.grow(replace(start, view=9))
    assert chain.head is more


class History:
    """A chain whose members come, go, change weight, are lost and return."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.churn = self.rng.choice([0.0, 0.1, 0.5])
        self.heads = [zero(self.rng.sample(PEERS, self.rng.randint(1, 8)))]

    def grow(self) -> Head:
        rng, parent = self.rng, self.heads[-1]
        voters = list(parent.table.voters)
        lost: tuple[PeerId, ...] = ()
        if len(voters) > 1 and rng.random() < self.churn / 8:
            left = rng.sample(voters, rng.randint(1, len(voters) * 2 // 3))
            if not parent.table.is_quorum(left):
                lost = tuple(sorted(set(voters) - set(left)))
                voters = left
        rng.shuffle(voters)
        counted = Table({each: parent.table.members[each] for each in voters})
        signers: list[PeerId] = []
        while not counted.is_quorum(signers) or (rng.random() < 0.3 and len(signers) < len(voters)):
            signers.append(voters[len(signers)])
        table = None if lost or rng.random() > self.churn else self.changed(parent.table)
        self.heads.append(child(parent, signers, table=table, lost=lost))
        return self.heads[-1]

    def changed(self, table: Table) -> Table:
        members = dict(table.members)
        who = self.rng.choice(PEERS)
        old = members.get(who, Member(who, 1.0, AWAY, True, ZERO, 0))
        weight = self.rng.choice([0.5, 1.0, 2.0])
        state = AWAY if old.state == STANDING and len(table.voters) > 1 and self.rng.random() < 0.5 else STANDING
        return Table({**members, who: replace(old, state=state, weight=weight)})


@settings(max_examples=100)
@given(st.integers(0, 1 << 30), st.integers(1, 60), st.integers(2, 6))
def test_an_asker_from_any_earlier_moment_gets_to_the_head(seed: int, length: int, keep: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "KEEP", keep)
        history = History(seed)
        chain = Chain(history.heads[0])
        moments = [(chain.locator(), chain.heads)]
        for _ in range(length):
            chain.append(history.grow())
            if history.rng.random() < 0.3:
                # Never enough to be final, but kept by that name.
                chain.mark_final(history.rng.choice(chain.heads).seal, ())
            moments.append((chain.locator(), chain.heads))
        for locator, kept in moments:
            for known in (locator, locator[1:]):
                asked, shown = chain.since(known)
                assert asked == (known[0] if known else None)
                if asked is not None:
                    start = next(each for each in kept if each.seal == asked)
                    end = walk(SCOPE, start, shown, sender=SENDER).heads
                    assert [each.seal for each in (start, *end)][-1] == chain.head.seal
                    assert not end or end[-1] == chain.head
        again = Chain(chain.anchor, chain.heads[1:])
        assert again.since(moments[0][0])[0] == chain.anchor.seal
        assert walk(SCOPE, chain.anchor, again.since([chain.anchor.seal])[1], sender=SENDER).heads[-1] == chain.head


# --- going over --------------------------------------------------------------------------------------


def test_going_over_keeps_what_is_shared_and_drops_the_rest() -> None:
    start = zero(SIX)
    shared = grown(start, 3, SIX)
    ours, theirs = grown(shared[-1], 2, SIX, b"a"), grown(shared[-1], 4, SIX, b"b")
    chain = Chain(start, [*shared, *ours])
    chain.mark_final(shared[1].seal, readys(shared[1], SIX))
    final = readys(theirs[1], SIX)
    branch = walk(
        SCOPE, start, [link(each, final if each is theirs[1] else ()) for each in [*shared, *theirs]], sender=""
    )
    chain.switch(start.seal, branch)
    assert [each.seal for each in chain.heads] == [each.seal for each in (start, *shared, *theirs)]
    assert chain.position(ours[0].seal) is None
    assert chain.final is not None
    assert (chain.final.seal, chain.proof) == (theirs[1].seal, final)
    assert chain.branch(shared[-1].seal) == Branch(tuple(theirs), theirs[1].seal, final)
    assert chain.branch(theirs[1].seal) == Branch(tuple(theirs[2:]))


def test_a_final_seal_is_never_left() -> None:
    start = zero()
    ours, theirs = grown(start, 2, salt=b"a"), grown(start, 3, salt=b"b")
    chain = Chain(start, ours)
    chain.mark_final(ours[0].seal, readys(ours[0], FOUR))
    with pytest.raises(LocalError, match="is not left"):
        chain.switch(start.seal, Branch(tuple(theirs)))
    with pytest.raises(LocalError, match="not kept"):
        chain.switch(ZERO, Branch(tuple(theirs)))
    with pytest.raises(LocalError, match="not on this chain"):
        chain.branch(ZERO)
    assert chain.head is ours[-1]


def test_branches_that_came_in_two_replies_are_one() -> None:
    start = zero()
    heads = tuple(grown(start, 4))
    proof = readys(heads[1], FOUR)
    first, second = Branch(heads[:2], heads[1].seal, proof), Branch(heads[2:])
    assert first.then(second) == Branch(heads, heads[1].seal, proof)
    newer = replace(second, final=heads[3].seal, proof=readys(heads[3], FOUR))
    assert first.then(newer).final == heads[3].seal


# --- fork choice -------------------------------------------------------------------------------------


def wins(one: Branch, other: Branch, ancestor: Head) -> None:
    assert prefer(other, one, ancestor)
    assert not prefer(one, other, ancestor)


def test_a_longer_chain_is_followed_and_a_shorter_one_is_not() -> None:
    start = zero()
    heads = tuple(grown(start, 3))
    wins(Branch(heads), Branch(heads[:2]), start)
    wins(Branch(heads), Branch(()), start)
    wins(Branch(heads[2:]), Branch(()), start)
    assert not prefer(Branch(heads), Branch(heads), start)
    assert not prefer(Branch(()), Branch(()), start)


def test_final_beats_all_and_two_finals_stay_apart() -> None:
    start = zero(SIX)
    one = tuple(grown(start, 2, SIX[:5], b"a"))
    final = Branch(one, one[0].seal, readys(one[0], SIX[:5]))
    other = tuple(grown(child(start, SIX, salt=b"b"), 9, SIX, b"b"))
    wins(final, Branch(other), start)
    also = Branch(other, other[3].seal, readys(other[3], SIX))
    assert not prefer(final, also, start)
    assert not prefer(also, final, start)


def test_a_final_seal_that_both_have_decides_nothing() -> None:
    start = zero(SIX)
    shared = child(start, SIX)
    proof = readys(shared, SIX)
    weak = (shared, child(shared, SIX[:2], lost=tuple(SIX[2:])))
    strong = (shared, *grown(shared, 2, SIX[1:]))
    wins(Branch(strong, shared.seal, proof), Branch(weak, shared.seal, proof), start)
    wins(Branch(strong), Branch(weak, shared.seal, proof), start)


def test_one_key_that_went_on_alone_shows_nothing_final() -> None:
    """After its shrink seal it certifies what it likes, also a table in which it is everybody."""
    start = zero(SIX)
    alone = child(start, SIX[:1], lost=tuple(SIX[1:]))
    king = child(alone, SIX[:1], table=table_of({SIX[0]: 1.0}))
    last = child(king, SIX[:1])
    proof = readys(king, SIX[:1])
    branch = walk(SCOPE, start, [link(alone), link(king, proof), link(last)], sender=SENDER)
    assert branch.final == king.seal, "by its own table it is"
    assert branch.shrinks
    for honest in (grown(start, 1, SIX[1:]), [child(start, SIX[1:4], lost=(SIX[0], *SIX[4:]))]):
        assert not prefer(Branch(tuple(honest)), branch, start)
        assert prefer(replace(branch, final=None), Branch(tuple(honest)), start)
    chain = Chain(start)
    chain.switch(start.seal, branch)
    assert (chain.head, chain.final) == (last, None), "who was fooled can go back"


def test_members_may_change_by_and_by_and_finals_still_count() -> None:
    start = zero(SIX)
    heads = [start]
    for step in range(6):
        rows = dict.fromkeys(PEERS[step + 1 : step + 7], 1.0)
        heads.append(child(heads[-1], heads[-1].table.voters, table=table_of(rows), salt=b"a"))
    proof = readys(heads[-1], PEERS[6:12])
    branch = walk(SCOPE, start, [*map(link, heads[1:-1]), link(heads[-1], proof)], sender=SENDER)
    wins(branch, Branch((child(start, SIX, view=99),)), start)


def test_two_thirds_beat_fewer_then_the_higher_view_of_the_highest() -> None:
    start = zero(SIX)
    strong = Branch(tuple(grown(start, 1, SIX[:5])))
    weak = Branch((child(start, SIX[:4], lost=tuple(SIX[4:])),))
    wins(strong, weak, start)
    longer = Branch(tuple(grown(start, 3, SIX[:5], b"x")))
    wins(longer, strong, start)
    late = Branch((child(start, SIX, view=3),))
    wins(Branch((*longer.heads, child(longer.heads[-1], SIX[:5]))), late, start)
    on_top = Branch((*late.heads, child(late.heads[0], SIX[:1], lost=tuple(SIX[1:]))))
    wins(Branch((*longer.heads, child(longer.heads[-1], SIX[:5]))), on_top, start)


def test_lost_members_count_in_the_fork() -> None:
    before = zero(SIX)
    start = child(before, SIX[:4], lost=tuple(SIX[4:]))
    three = child(start, SIX[:3])
    assert start.table.is_quorum(SIX[:3])
    assert not start.table.holds(SIX[:3], start.round)
    with_lost = child(start, [*SIX[:2], *SIX[4:]], view=start.view + 1, salt=b"more")
    wins(Branch((with_lost,)), Branch((three,)), start)


def test_then_weight_then_view_then_the_smaller_hash() -> None:
    start = zero(SIX)

    def weak(voters: list[PeerId], view: int, salt: bytes = b"") -> Branch:
        return Branch(
            (child(start, voters, lost=tuple(each for each in SIX if each not in voters), view=view, salt=salt),)
        )

    wins(weak(SIX[:4], 7), weak(SIX[3:], 8), start)
    wins(weak(SIX[:3], 8), weak(SIX[3:], 7), start)
    one, other = weak(SIX[:3], 7, b"a"), weak(SIX[:3], 7, b"b")
    small, large = sorted([one, other], key=lambda each: each.heads[0].seal)
    wins(small, large, start)


@st.composite
def forks(draw: st.DrawFn) -> tuple[Head, list[Branch]]:
    """Up to four branches with any votes at all: fork choice also has to decide among what liars made."""
    peers = PEERS[: draw(st.integers(1, 5))]
    weights = {each: draw(st.sampled_from([0.5, 1.0, 1.0, 3.0])) for each in peers}
    lost = draw(st.sets(st.sampled_from(peers), max_size=len(peers) - 1))
    rows = table_of(weights).members
    start = replace(zero(), table=Table({p: replace(m, state=LOST) if p in lost else m for p, m in rows.items()}))
    branches = []
    for number in range(draw(st.integers(2, 4))):
        heads = [start]
        for _ in range(draw(st.integers(0 if number == 0 else 1, 3))):
            voters = draw(st.sets(st.sampled_from(peers)))
            view = heads[-1].view + draw(st.integers(1, 2))
            heads.append(child(heads[-1], voters, view=view, salt=b"%d" % number))
        branch = Branch(tuple(heads[1:]))
        if len(heads) > 1 and draw(st.integers(0, 3)) == 0:
            shown = heads[draw(st.integers(1, len(heads) - 1))]
            branch = replace(branch, final=shown.seal, proof=readys(shown, draw(st.sets(st.sampled_from(peers)))))
        branches.append(branch)
    return start, branches


@settings(max_examples=80)
@given(forks())
def test_fork_choice_never_wants_both_and_decides_where_nothing_is_final(fork: tuple[Head, list[Branch]]) -> None:
    start, branches = fork
    for one in branches:
        assert not prefer(one, one, start)
        for other in branches:
            both = prefer(one, other, start), prefer(other, one, start)
            assert both != (True, True)
            if one is not other and one.final is None and other.final is None:
                assert any(both)


@settings(max_examples=80)
@given(forks())
def test_fork_choice_is_transitive(fork: tuple[Head, list[Branch]]) -> None:
    start, branches = fork
    plain = [each for each in branches if each.final is None]
    for one in plain:
        for two in plain:
            for three in plain:
                if prefer(one, two, start) and prefer(two, three, start):
                    assert prefer(one, three, start)
