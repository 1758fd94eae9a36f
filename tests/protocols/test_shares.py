"""How a dead reducer's parts go on to the others (protocol.md 5.7), against drawing each part's order in full."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import turns
from protocols.ids import Hash, PeerId, digest
from protocols.round.roster import Cast
from protocols.round.shares import Shares
from tests.protocols.tables import PARENT, peers

COMMITS = [Hash(b"c" * 32), Hash(b"d" * 32)]
PEERS = peers(6)
PARTS = 60


def cast_of(lots: dict[PeerId, int], parts: int = PARTS) -> Cast:
    def inherit(out: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        left = {each: lots[each] for each in lots if each not in out}
        return tuple(turns.owners(PARENT, COMMITS, left, parts)) if left else ()

    core = Hash(b"k" * 32)
    return Cast(
        base=core, core=core, view=1, rev=0, coordinator=PEERS[0], commits={}, rows=tuple(PEERS),
        reducers=tuple(sorted(lots)), owners=inherit(()), out=(), lost=(), inherit=inherit,
    )  # fmt: skip


def line(lots: dict[PeerId, int], part: int) -> list[PeerId]:
    """Reducers in the order in which a part would come to them: each one's best ticket, largest first."""
    seed = digest(b"owner", PARENT, *COMMITS)

    def best(each: PeerId) -> bytes:
        tickets = (lot.to_bytes(8, "big") for lot in range(1, lots[each] + 1))
        return max(digest(seed, part.to_bytes(8, "big"), each.encode(), ticket) for ticket in tickets)

    return sorted(lots, key=best, reverse=True)


drawn = st.dictionaries(st.sampled_from(PEERS), st.integers(1, 4), min_size=1)


@settings(max_examples=40)
@given(drawn, st.data())
def test_each_part_goes_down_its_own_line(lots: dict[PeerId, int], data: st.DataObject) -> None:
    out = tuple(data.draw(st.lists(st.sampled_from(PEERS), unique=True, max_size=len(PEERS))))
    shares = Shares(cast_of(lots, 20), out)
    left = [each for each in lots if each not in out]
    assert shares.possible == bool(left)
    if not left:
        assert (shares.holders, shares.parts) == ([], {})
        return
    expected = []
    for part in range(20):
        order = line(lots, part)
        owner = next(each for each in order if each not in out)
        before = order[: order.index(owner)]  # all of them were put out; it came with the last of them
        expected.append((owner, max((out.index(each) + 1 for each in before), default=0)))
    assert shares.holders == expected
    assert shares.parts == {
        share: [part for part in range(20) if expected[part] == share] for share in sorted(set(expected))
    }
    assert list(shares.parts) == sorted(shares.parts)
    for each in PEERS:
        assert shares.of(each) == {part for part in range(20) if expected[part][0] == each}


@settings(max_examples=40)
@given(drawn, st.permutations(PEERS))
def test_putting_one_out_changes_only_its_own_parts(lots: dict[PeerId, int], order: list[PeerId]) -> None:
    cast_ = cast_of(lots)
    for stage in range(len(order)):
        before, after = Shares(cast_, tuple(order[:stage])), Shares(cast_, tuple(order[: stage + 1]))
        if not after.possible:
            break
        gone = order[stage]
        for one, other in zip(before.holders, after.holders, strict=True):
            assert other[0] != gone
            assert one == other or (one[0] == gone and other[1] == stage + 1)
        assert sorted(part for parts in after.parts.values() for part in parts) == list(range(PARTS))


def test_a_reducer_that_takes_over_keeps_what_it_had_as_a_share_of_its_own() -> None:
    """Its first result stays good: the bytes that came to it later are another share with another root."""
    cast_ = cast_of(dict.fromkeys(PEERS[:3], 2))
    gone, heir = PEERS[0], PEERS[1]
    first, second = Shares(cast_, ()), Shares(cast_, (gone,))
    assert second.parts[heir, 0] == first.parts[heir, 0] == cast_.owned(heir)
    assert second.parts[heir, 1] == [
        part for part in cast_.owned(gone) if line(dict.fromkeys(PEERS[:3], 2), part)[1] == heir
    ]
    assert second.of(heir) == {*second.parts[heir, 0], *second.parts[heir, 1]}
    assert (gone, 0) not in second.parts
    assert second.of(gone) == frozenset()


def test_the_order_in_which_they_went_decides_the_stage_but_not_the_owner() -> None:
    cast_ = cast_of(dict.fromkeys(PEERS, 2))
    one, other = Shares(cast_, (PEERS[0], PEERS[1])), Shares(cast_, (PEERS[1], PEERS[0]))
    assert [owner for owner, _ in one.holders] == [owner for owner, _ in other.holders]
    assert one.holders != other.holders
    assert [owner for owner, _ in one.holders] == turns.owners(PARENT, COMMITS, dict.fromkeys(PEERS[2:], 2), PARTS)


def test_one_who_reduces_nothing_changes_nothing() -> None:
    cast_ = cast_of(dict.fromkeys(PEERS[:3], 2))
    assert Shares(cast_, (PEERS[5],)).holders == Shares(cast_, ()).holders
    assert Shares(cast_, ()).parts == {(each, 0): cast_.owned(each) for each in cast_.working}
