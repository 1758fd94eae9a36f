"""The chain on the disk: what a restarted peer shows to newcomers, and what becomes of a damaged file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer import chain_file
from peer.chain_file import ChainFile
from peer.choosing import remember
from protocols.chain_payloads import Link
from protocols.errors import EnvironmentFault
from protocols.ids import Hash
from protocols.round.effects import Followed
from protocols.round.links import Chain, Image, restored
from protocols.round.walking import walk
from tests.protocols.chains import FOUR, child, grown, readys, zero
from tests.swarm.town import ideal

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.round.chain import Head
    from tests.swarm.judge import IdealScope


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch) -> IdealScope:
    return ideal(monkeypatch)


def image_of(chain: Chain) -> Image:
    return replace(chain.image, zero=zero().seal)


def grow(chain: Chain, file: ChainFile, heads: list[Head]) -> None:
    """Round by round, each made final by the next one."""
    for head in heads:
        chain.append(head)
        file.save(image_of(chain))
        chain.mark_final(head.seal, readys(head, FOUR))


def test_a_restarted_peer_shows_what_it_showed_before(tmp_path: Path, scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 150)
    before = Chain(start)
    grow(before, ChainFile(tmp_path, scope), true)
    again = ChainFile(tmp_path, scope)
    image = again.load(FOUR)
    assert image is not None and not again.warnings
    chain = restored(true[-1], (), image)
    assert chain.anchor.seal == start.seal
    assert chain.final is not None and chain.final.seal == true[-2].seal
    assert chain.invited == before.invited == (true[143].seal, 144)
    for known in (start.seal, true[63].seal, true[100].seal, true[143].seal):
        seal, links = chain.since([known])
        assert seal == known, "milestones are known, too"
        begin = ([start, *true])[[start.seal, *(each.seal for each in true)].index(known)]
        assert walk(scope, begin, links, sender="").heads[-1].seal == true[-1].seal
    assert chain.shown(true[7].seal) == before.shown(true[7].seal) is not None


def test_the_file_stays_within_twice_what_is_kept(tmp_path: Path, scope: IdealScope) -> None:
    file, chain = ChainFile(tmp_path, scope), Chain(zero())
    sizes, rewritten = [], 0
    for head in grown(zero(), 400):
        number = file.path.stat().st_ino if file.path.exists() else 0
        grow(chain, file, [head])
        rewritten += number != file.path.stat().st_ino
        sizes.append(file.path.stat().st_size)
    whole = sum(len(Link(each.proposal, each.votes, each.table).encode()) for each in chain.heads if each.proposal)
    whole += sum(len(each.link) for each in chain.image.milestones)
    assert max(sizes[100:]) < 3 * whole
    assert rewritten < 12, "most rounds only append"


def test_a_chain_that_was_left_leaves_the_file(tmp_path: Path, scope: IdealScope) -> None:
    start = zero()
    shared = grown(start, 5)
    ours, theirs = grown(shared[-1], 3, salt=b"ours"), grown(shared[-1], 5, salt=b"theirs")
    file, chain = ChainFile(tmp_path, scope), Chain(start)
    for head in [*shared, *ours]:
        chain.append(head)
        file.save(image_of(chain))
    chain.switch(start.seal, walk(scope, start, [_link(each) for each in [*shared, *theirs]], sender=""))
    file.save(image_of(chain))
    image = ChainFile(tmp_path, scope).load(FOUR)
    assert image is not None
    assert [each.seal for each in image.heads] == [each.seal for each in (start, *shared, *theirs)]


def _link(head: Head) -> Link:
    assert head.proposal
    return Link(head.proposal, head.votes, head.table)


def test_a_crash_while_appending_costs_the_last_record(tmp_path: Path, scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 6)
    file, chain = ChainFile(tmp_path, scope), Chain(start)
    grow(chain, file, true)
    raw = file.path.read_bytes()
    for cut in (1, 40, 900):
        file.path.write_bytes(raw[:-cut])
        again = ChainFile(tmp_path, scope)
        image = again.load(FOUR)
        assert image is not None and not again.warnings
        assert image.heads[-1].seal in (true[-1].seal, true[-2].seal)
        back = restored(true[-1], (), image)
        assert [each.seal for each in back.heads] == [each.seal for each in (start, *true)]
        again.save(image_of(back))
        whole = ChainFile(tmp_path, scope).load(FOUR)
        assert whole is not None and len(whole.heads) == 7


@pytest.mark.parametrize("damage", ["bit", "garbage", "votes", "huge"])
def test_a_damaged_file_is_a_warning_and_the_checkpoints_hold(
    tmp_path: Path, scope: IdealScope, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = zero()
    true = grown(start, 6)
    if damage == "votes":
        true = [*true, replace(child(true[-1], FOUR), votes=true[-1].votes)]
    file, chain = ChainFile(tmp_path, scope), Chain(start)
    grow(chain, file, true)
    raw = bytearray(file.path.read_bytes())
    if damage == "bit":
        raw[len(raw) // 2] ^= 1
    elif damage == "garbage":
        raw[:] = b"\x00" * len(raw)
    elif damage == "huge":
        monkeypatch.setattr(chain_file, "FILE_BYTES", len(raw) - 1)
    file.path.write_bytes(raw)
    again = ChainFile(tmp_path, scope)
    assert again.load(FOUR) is None
    assert "neighbours are asked" in again.warnings[0]
    back = restored(true[-1], true[-3:-1], None)
    assert [each.seal for each in back.heads] == [each.seal for each in true[-3:]]
    monkeypatch.undo()
    ideal(monkeypatch)
    again.save(image_of(back))
    assert again.path.stat().st_size < len(raw), "and it is written anew"


def test_a_chain_that_begins_with_an_invitations_seal_comes_back(tmp_path: Path, scope: IdealScope) -> None:
    true = grown(zero(), 20)
    bare = replace(true[7], votes=(), parent_table=None)
    chain = Chain(bare, true[8:])
    file = ChainFile(tmp_path, scope)
    file.save(image_of(chain))
    image = ChainFile(tmp_path, scope).load(FOUR)
    assert image is not None
    assert [each.seal for each in image.heads] == [each.seal for each in true[7:]]
    assert image.zero == zero().seal
    assert chain.fill(zero(), true), "somebody has shown the rest"
    file.save(image_of(chain))
    image = ChainFile(tmp_path, scope).load(FOUR)
    assert image is not None
    assert image.heads[0].seal == zero().seal


def test_a_choice_is_kept_and_a_damaged_one_told(tmp_path: Path, scope: IdealScope) -> None:
    head = grown(zero(), 3)[-1]
    file = ChainFile(tmp_path, scope)
    assert file.followed() is None
    file.save_followed(head.seal, _link(replace(head, votes=())).encode())
    assert file.followed() == replace(head, votes=(), parent_table=None)
    assert remember(file, Followed(head.seal, b"")) is None
    assert file.followed() is None
    assert remember(file, Followed(head.seal, _link(replace(head, votes=())).encode())) is None
    raw = bytearray(file.followed_path.read_bytes())
    raw[50] ^= 1
    file.followed_path.write_bytes(raw)
    assert file.followed() is None
    assert "choose again" in file.warnings[0]


def test_a_disk_that_refuses_is_an_environment_fault_and_is_tried_again(tmp_path: Path, scope: IdealScope) -> None:
    chain = Chain(zero(), grown(zero(), 3))
    folder = tmp_path / "run"
    folder.write_text("a file in its place")
    file = ChainFile(folder, scope)
    with pytest.raises(EnvironmentFault):
        file.save(image_of(chain))
    folder.unlink()
    file.save(image_of(chain))
    shutil.copy(file.path, tmp_path / "copy")
    image = ChainFile(folder, scope).load(FOUR)
    assert image is not None and len(image.heads) == 4
    assert image.final is None
    assert chain.at(2) == image.heads[2].seal != Hash(bytes(32))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_records_hold_loading_ends_in_a_chain_or_a_warning(
    tmp_path: Path, scope: IdealScope, data: st.DataObject
) -> None:
    """The checksums hold: as if another program had written it."""
    file, chain = ChainFile(tmp_path / "one", scope), Chain(zero())
    grow(chain, file, grown(zero(), 4))
    records = [*chain_file._records_of(file.path.read_bytes())[0].items()]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(records) - 1))
        (kind, seal), payload = records[place]
        kind = data.draw(st.sampled_from([kind, b"Z", b"R", b"L", b"M", b"F", b"?"]))
        cut = data.draw(st.integers(0, len(payload)))
        payload = payload[:cut] + data.draw(st.binary(max_size=8)) + payload[cut + data.draw(st.integers(0, 8)) :]
        records[place] = (kind, seal), payload
    (tmp_path / "two").mkdir(exist_ok=True)
    bent = ChainFile(tmp_path / "two", scope)
    bent.path.write_bytes(b"".join(chain_file._framed(*each) for each in records))
    image = bent.load(FOUR)
    if image is None:
        assert bent.warnings
    else:
        for parent, head in zip(image.heads, image.heads[1:], strict=False):
            assert head.parent == parent.seal or parent.table.is_quorum(head.signers)
