"""Manifests with a list of who may take part, and with the state of another run to start from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tomli_w

from peer.settings import round_setting
from protocols.errors import ConfigError
from protocols.manifest import Start, render, run_id, to_plain
from protocols.manifest_defaults import Choices, default_manifest
from protocols.manifest_text import ALLOW_LIMIT, parse
from tests.protocols.rosters import commit as committed
from tests.protocols.rosters import good, ordered, read, refused
from tests.protocols.rosters import keys as people
from tests.protocols.test_manifest import FOUNDER, SHARDS, STRANGER, example

OTHER = people()[0].peer
START = Start("ab" * 32, 12, "cd" * 32, 8 * 81_648, "ef" * 32)


def private() -> Any:
    return default_manifest(Choices(allow=(STRANGER,)), founders=[FOUNDER], shards=SHARDS)


def test_a_private_run_admits_its_founders_and_its_list_only() -> None:
    manifest = private()
    assert parse(render(manifest)) == manifest
    assert [manifest.members.admits(each) for each in (FOUNDER, STRANGER, OTHER)] == [True, True, False]
    assert [example().members.admits(each) for each in (FOUNDER, STRANGER, OTHER)] == [True, True, True]
    setting = round_setting(manifest, 81_648)
    assert [setting.admits(each) for each in (STRANGER, OTHER)] == [True, False]
    assert not round_setting(example(), 81_648).admits(STRANGER), "without a list a closed run has no newcomers"


def test_an_empty_list_is_no_list_and_the_same_run() -> None:
    tree = to_plain(example())
    tree["members"]["allow"] = []  # type: ignore[index, call-overload]
    assert parse(tomli_w.dumps(tree)) == example()
    assert run_id(private()) != run_id(example())


@pytest.mark.parametrize(
    "value",
    [["12D3KooW"], [STRANGER, STRANGER], "all", [1], [STRANGER] * (ALLOW_LIMIT + 1)],
    ids=lambda it: str(it)[:30],
)
def test_a_wrong_list_is_named(value: Any) -> None:
    tree = to_plain(example())
    tree["members"]["allow"] = value  # type: ignore[index, call-overload]
    with pytest.raises(ConfigError, match=r"\[members\] allow") as caught:
        parse(tomli_w.dumps(tree))
    assert len(str(caught.value)) < 300


def test_private_and_open_at_once_is_a_contradiction() -> None:
    members = replace(private().members, open=True)
    with pytest.raises(ConfigError, match="lets everybody in"):
        parse(render(replace(private(), members=members)))


def test_a_start_state_is_part_of_the_run() -> None:
    manifest = replace(example(), start=START)
    assert parse(render(manifest)) == manifest
    assert (
        len({run_id(each) for each in (manifest, example(), replace(example(), start=replace(START, round=13)))}) == 3
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("run", "AB" * 32), ("seal", "cd"), ("hash", ""), ("round", -1), ("bytes", 0), ("bytes", 12), ("bytes", 1 << 41)],
)
def test_a_wrong_start_is_named(key: str, value: Any) -> None:
    tree = to_plain(replace(example(), start=START))
    tree["start"][key] = value  # type: ignore[index, call-overload]
    with pytest.raises(ConfigError, match=rf"\[start\] {key}"):
        parse(tomli_w.dumps(tree))
    del tree["start"][key]  # type: ignore[union-attr, arg-type]
    with pytest.raises(ConfigError, match=rf"\[start\] {key} is missing"):
        parse(tomli_w.dumps(tree))


def test_a_private_roster_holds_commits_of_the_list_and_of_nobody_else() -> None:
    of, commits, readys = good()
    guest, stranger = people()[4], people()[5]
    with_guest = ordered(*commits, committed(guest, of.seal))
    with_stranger = ordered(*commits, committed(stranger, of.seal))
    assert guest.peer in read(of, with_guest, readys, open_=False, allowed=[guest.peer]).commits
    refused(of, with_stranger, readys, "the run is closed", open_=False, allowed=[guest.peer])
