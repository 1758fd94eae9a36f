"""Fork choice: which of two branches wins, and that nobody goes round in circles."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.round.forks import prefer
from protocols.round.links import Chain
from protocols.round.walking import Branch, walk
from protocols.table import LOST, Table
from tests.protocols.chains import PEERS, SCOPE, SIX, child, grown, link, readys, table_of, zero

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.round.chain import Head


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
    branch = walk(SCOPE, start, [link(alone), link(king, proof), link(last)], sender="")
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
    branch = walk(SCOPE, start, [*map(link, heads[1:-1]), link(heads[-1], proof)], sender="")
    wins(branch, Branch((child(start, SIX, view=99),)), start)


def test_the_table_where_they_part_decides() -> None:
    start = zero(SIX)
    shared = child(start, SIX, table=table_of({each: 9.0 if each == SIX[5] else 1.0 for each in SIX}))
    heavy = child(shared, SIX[5:], view=9, lost=tuple(SIX[:5]))
    many = child(shared, SIX[:5], view=9, lost=(SIX[5],))
    wins(Branch((shared, heavy)), Branch((shared, many)), start)
    wins(Branch((heavy,)), Branch((many,)), shared)
    wins(Branch((many,)), Branch((heavy,)), start)


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
    three = child(start, SIX[:3], view=start.view + 2)
    assert start.table.is_quorum(SIX[:3])
    assert not start.table.holds(SIX[:3], start.round)
    with_lost = child(start, [*SIX[:3], *SIX[4:]], view=start.view + 1, salt=b"more")
    wins(Branch((three,)), Branch((with_lost,)), start)  # both are a quorum's: the higher view
    two = child(start, [*SIX[:2], SIX[4]], view=start.view + 3, salt=b"two")
    wins(Branch((with_lost,)), Branch((two,)), start)


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
