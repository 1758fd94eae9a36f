"""The entry node of a lighthouse: any run's records, bounded, and who is made known in each run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, cast

import msgpack
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord

from dht import entry as entry_module
from dht.directory import Directory, DirectoryTiming
from dht.entry import EntryNode, Herald, RunsValidator
from dht.records import PeerRecord, encode_record, expiration_of, key_of
from dht.tasks import end
from peer.identity import Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import pytest

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

NOW = 1_000_000.0


def _run(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _entry(run: bytes, key: Identity, *, under: bytes | None = None, expires: int = int(NOW) + 60) -> DHTRecord:
    record = PeerRecord(run, key.peer, ("/ip4/1.2.3.4/tcp/1/p2p/" + key.peer,), (), "1", 0, 1, expires)
    where = DHTID.generate(source=key_of(under or run)).to_bytes()
    value = msgpack.packb(encode_record(record, key.sign))
    return DHTRecord(where, msgpack.packb(key.peer), value, expiration_of(record))


def _key(number: int) -> Identity:
    return Identity.from_seed(bytes([number]) * 32)


def test_any_run_is_served_and_each_for_itself() -> None:
    validator = RunsValidator(120, lambda: NOW)
    assert validator.validate(_entry(_run(1), _key(1))) and validator.validate(_entry(_run(2), _key(1)))
    assert not validator.validate(_entry(_run(3), _key(1), under=_run(1))), "of another run than its key says"
    assert sorted(validator.served()) == [_run(1), _run(2)]
    assert validator.served(frozenset({_key(1).peer})) == [], "whom we make known ourselves keeps no run alive"
    assert {gauge.name: gauge.in_use for gauge in validator.gauges()}["records"] == 2


def test_a_run_without_living_records_is_not_served() -> None:
    now = [NOW]
    validator = RunsValidator(120, lambda: now[0])
    assert validator.validate(_entry(_run(1), _key(1)))
    now[0] += 61
    assert validator.served() == []


def test_named_runs_alone() -> None:
    validator = RunsValidator(120, lambda: NOW, named=[_run(1)])
    assert validator.validate(_entry(_run(1), _key(1)))
    assert not validator.validate(_entry(_run(2), _key(1)))


def test_forged_and_malformed_records_begin_no_run() -> None:
    validator = RunsValidator(120, lambda: NOW)
    good = _entry(_run(1), _key(1))
    forged = DHTRecord(good.key, good.subkey, good.value[:-1] + bytes([good.value[-1] ^ 1]), good.expiration_time)
    for bad in (forged, DHTRecord(good.key, good.subkey, b"\xc4\x01a", NOW), DHTRecord(good.key, b"", b"\xdd", NOW)):
        assert not validator.validate(bad)
    assert validator.served() == [] and validator.gauges()[0].in_use == 0


def test_the_run_renewed_longest_ago_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "RUNS", 2)
    gone: list[tuple[bytes, str | None]] = []
    validator = RunsValidator(120, lambda: NOW, on_gone=lambda run, peer: gone.append((run, peer)))
    assert all(validator.validate(_entry(_run(number), _key(1))) for number in (1, 2))
    assert validator.validate(_entry(_run(1), _key(2)))
    gone.clear()
    assert validator.validate(_entry(_run(3), _key(1)))
    assert (_run(2), _key(1).peer) in gone and not any(run == _run(1) for run, _ in gone)
    assert sorted(validator.served()) == [_run(1), _run(3)]
    assert validator.gauges()[0].refused == 1


def test_runs_of_one_peer_each_push_out_no_run_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, whoever invented as many runs as there is room for had pushed out all others."""
    monkeypatch.setattr(entry_module, "RUNS", 4)
    now = [NOW]
    validator = RunsValidator(120, lambda: now[0])
    assert all(validator.validate(_entry(_run(1), _key(number))) for number in (1, 2))
    assert all(validator.validate(_entry(_run(number), _key(3))) for number in range(10, 30))
    assert _run(1) in validator.served() and len(validator.served()) == 4
    now[0] += 61
    assert all(validator.validate(_entry(_run(number), _key(3), expires=int(now[0]) + 60)) for number in range(40, 44))
    assert sorted(validator.served()) == [_run(number) for number in range(40, 44)], "an expired one gives way first"


def test_a_record_that_is_not_taken_pushes_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "RUNS", 2)
    validator = RunsValidator(120, lambda: NOW)
    assert all(validator.validate(_entry(_run(number), _key(1))) for number in (1, 2))
    good = _entry(_run(3), _key(1))
    assert not validator.validate(_entry(_run(3), _key(1), expires=int(NOW) + 9999))
    assert not validator.validate(DHTRecord(good.key, msgpack.packb(_key(2).peer), good.value, good.expiration_time))
    assert sorted(validator.served()) == [_run(1), _run(2)] and validator.gauges()[0].refused == 0


def test_one_run_whose_nodes_are_silent_keeps_no_herald_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each search for dead nodes, 20 s long, held up all that came after it."""

    async def scenario() -> None:
        entry = EntryNode(cast("Any", None), "1")
        told: list[bytes] = []

        async def issue(run: bytes, _: Herald) -> None:
            if run == _run(1):
                await asyncio.Event().wait()
            told.append(run)

        monkeypatch.setattr(entry, "_issue", issue)
        relay = _key(9)
        entry.make_known([Herald(relay.peer, (), "relay", relay.sign)])
        soon = int(time.time()) + 60
        for number in (1, 2, 3):
            assert entry.validator.validate(_entry(_run(number), _key(1), expires=soon))
        teller = asyncio.create_task(entry._tell())
        await asyncio.sleep(0.05)
        await end([teller])
        assert sorted(told) == [_run(2), _run(3)]

    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def _lighthouse(node: Any, heralds: list[Herald]) -> AsyncIterator[EntryNode]:
    entry = EntryNode(node.transport, "1", timing=DirectoryTiming(refresh_s=1.0))
    await entry.start()
    try:
        entry.make_known(heralds)
        yield entry
    finally:
        await entry.close()


async def _both(directory: Directory) -> list[PeerRecord]:
    """Own record and the herald's, which comes when the entry node has seen the run."""
    for _ in range(200):
        if len(found := await directory.records()) == 2:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("the herald was not made known")


def test_two_peers_meet_through_it_and_find_its_relay(open_node: OpenNode) -> None:
    async def scenario() -> None:
        relay = _key(9)
        herald = Herald(relay.peer, ("/ip4/1.2.3.4/tcp/4002/p2p/" + relay.peer,), "relay", relay.sign)
        async with contextlib.AsyncExitStack() as stack:
            seed, one, two = [await stack.enter_async_context(open_node(number)) for number in (1, 2, 3)]
            entry = await stack.enter_async_context(_lighthouse(seed, [herald]))
            for number, node in ((1, one), (2, two)):
                directory = Directory(node.transport, _run(number), node.identity.sign)
                await directory.start(seed.transport.addresses(), client=True)
                stack.push_async_callback(directory.close)
                peer = node.transport.peer
                directory.announce(PeerRecord(_run(number), peer, (), ("contributor",), "1", 0, 0, 0))
                found = await _both(directory)
                assert {each.peer: each.roles for each in found} == {peer: ("contributor",), relay.peer: ("relay",)}
            assert sorted(entry.validator.served()) == [_run(1), _run(2)]

    asyncio.run(scenario())
