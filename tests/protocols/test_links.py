"""The chain of certified seals: what is believed, what is kept, and how a peer goes over to another branch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.chain_payloads import MAX_LOCATOR, Link
from protocols.errors import LocalError, RemoteError
from protocols.messages import Vote
from protocols.round import links
from protocols.round.links import Chain
from protocols.round.walking import Branch, is_final, walk
from protocols.table import AWAY, STANDING, Member, Table
from tests.protocols.chains import (
    FOUR,
    PEERS,
    SCOPE,
    SIX,
    ZERO,
    child,
    grown,
    link,
    ready,
    readys,
    signed,
    table_of,
    zero,
)

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.round.chain import Head

SENDER = "whoever showed it"


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
    cousin = child(replace(start, seal=ZERO), FOUR)
    refused(start, [link(cousin)], "does not follow")


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
        chain.append(child(chain.head, FOUR[:3], table=Table(dict(chain.head.table.members))))
        assert chain.sizes()["links"] <= links.KEEP + 1
    assert chain.sizes() == {"links": links.KEEP + 1, "seals": 2001, "voters": 1, "milestones": 64 + 23}
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
    assert [each.round for each in branch.heads] == [47, 48, 49, 50], "parent and final one, which all keep; two"
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


def test_a_link_that_had_to_stay_goes_when_more_have_voted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "KEEP", 2)
    start = zero()
    changed = child(start, FOUR, table=table_of(dict.fromkeys(PEERS[1:5], 1.0)))
    few = child(changed, PEERS[2:5])
    chain = Chain(start, [changed, few, *grown(few, 1, PEERS[2:5])])
    assert changed in chain.heads, "two of four voters of its parent's table are no jump"
    for _ in range(3):
        chain.append(child(chain.head, PEERS[1:5]))
    assert [each.round for each in chain.heads] == [0, 5, 6]


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
    with pytest.raises(LocalError, match="on this chain already"):
        chain.switch(start.seal, Branch(tuple(ours[:1])))
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


def test_of_what_a_disk_holds_only_what_leads_to_the_head_is_taken() -> None:
    """After a fork the checkpoints of the lost branch are still there; as links they would hide the fork."""
    start = zero(SIX)
    kept = child(start, SIX)
    lost = child(kept, SIX, view=kept.view + 1, salt=b"lost")
    head = child(kept, SIX, view=kept.view + 2)
    assert links.lineage(head, [start, kept, lost]) == [start, kept, head]
    assert links.lineage(head, [start, lost]) == [head], "what is between is not there, so nothing is known of it"
    assert links.lineage(head, []) == [head]
