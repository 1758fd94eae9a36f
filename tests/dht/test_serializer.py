"""What hivemind is given to decode: the directory's values pass, what would end the process or fill it does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2PHandlerError
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from dht.directory import Directory
from dht.limits import RECORDS
from dht.serializer import BoundedSerializer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

RUN = bytes(range(32))
TUPLE, TENSOR = 0x40, 0x51
LISTS = (b"\xdc\x90\x00" * 1000).ljust(38_000, b"\xc0")


def dictionary(count: int) -> DictionaryDHTValue:
    made = DictionaryDHTValue()
    for number in range(count):
        made.store(f"peer {number}", msgpack.packb(b"record"), 1e10)
    return made


def nested(depth: int) -> bytes:
    raw = b"\xc0"
    for _ in range(depth):
        raw = msgpack.packb(msgpack.ExtType(TUPLE, b"\x91" + raw))
    return raw


@pytest.mark.parametrize("value", [None, "12D3KooW", b"bytes", 7, -1, 2.5, True])
def test_flat_values_pass(value: object) -> None:
    assert BoundedSerializer.loads(MSGPackSerializer.dumps(value)) == value


@pytest.mark.parametrize("count", [0, 1, RECORDS])
def test_a_dictionary_of_as_many_records_as_a_node_holds_passes(count: int) -> None:
    found = BoundedSerializer.loads(MSGPackSerializer.dumps(dictionary(count)))
    assert isinstance(found, DictionaryDHTValue)
    assert dict(found.items()) == dict(dictionary(count).items())


@pytest.mark.parametrize(
    "raw",
    [
        nested(1), nested(400), LISTS, msgpack.packb(msgpack.ExtType(0x50, LISTS)),
        msgpack.packb(msgpack.ExtType(0x50, b"\x93\x01\x02\x91" + nested(400))),
        msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([1, 2, [[nested(3), [1], 2]]]))),
        msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([1, float("nan"), []]))),
        msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([1, 2, [["a", b"b", None]]]))),
        msgpack.packb(msgpack.ExtType(TENSOR, b"\x80")), msgpack.packb([1]), msgpack.packb({"a": 1}), b"", b"\xc1",
        MSGPackSerializer.dumps(dictionary(RECORDS + 1)),
    ],
)  # fmt: skip
def test_everything_else_is_refused_and_sets_little_aside(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            BoundedSerializer.loads(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20 or len(raw) > 100_000
    finally:
        tracemalloc.stop()


def test_without_the_check_a_few_kilobytes_end_the_process() -> None:
    """The reason for it all: when this fails, hivemind or msgpack has mended it."""
    program = (
        "from tests.dht.test_serializer import nested, MSGPackSerializer\n"
        "try:\n    MSGPackSerializer.loads(nested(4000))\nexcept Exception:\n    pass\n"
    )
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, check=False, timeout=60)
    assert ended.returncode < 0, "killed by a signal"


def test_a_directory_lives_on_after_such_a_request(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as victim, open_node(2) as liar:
            directories = [Directory(node.transport, RUN, node.identity.sign) for node in (victim, liar)]
            await directories[0].start([])
            await directories[1].start([victim.transport.addresses()[0]])
            try:
                async with asyncio.timeout(20):
                    while directories[1].seeds()[0].state != "ok":
                        await directories[1].peers()
                protocol = directories[1]._node._node.protocol
                for raw in (nested(400), LISTS[:30_000]):
                    request = dht_pb2.StoreRequest(
                        keys=[bytes(20)], subkeys=[b""], values=[raw], expiration_time=[2e9], in_cache=[False]
                    )
                    with pytest.raises(P2PHandlerError, match="ValueError|an extension|not msgpack"):
                        await protocol.get_stub(victim.transport.p2p.peer_id).rpc_store(request, timeout=5)
                assert await directories[1].peers() == []
            finally:
                for directory in directories:
                    await directory.close()

    asyncio.run(scenario())
