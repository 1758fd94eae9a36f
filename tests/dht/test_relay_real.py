"""The relay as its visitors meet it: p2pd with its own relay client, and py-libp2p, each in its own process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dht import relay_process
from dht.relay_limits import RelayLimits
from dht.relay_process import RelayConfig, RelayFigures, RelayProcess
from peer.identity import Identity
from protocols.errors import EnvironmentFault, TransportError
from tests.dht.relay_lab import NOISE, ROOT, TLS, go_peer, py_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dht.stream import Ends

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="the extra 'lighthouse' is not installed"),
]
STOP = "/libp2p/circuit/relay/0.2.0/stop"
OK, REFUSED, LIMIT, DENIED, NO_RESERVATION = 100, 200, 201, 202, 204
MIB = 1 << 20
FAST = RelayLimits(circuit_rate=None, total_rate=None)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short path, for sockets, and the relay's key."""
    path = Path(tempfile.mkdtemp(prefix="relay-"))
    Identity.from_seed(bytes(32)).save(path / "key")
    yield path
    shutil.rmtree(path)


class Watched(RelayProcess):
    """A relay whose figures can be waited for."""

    def __init__(self, config: RelayConfig) -> None:
        self._changed = asyncio.Event()
        super().__init__(config, self._changed.set)

    async def until(self, condition: Callable[[RelayFigures], bool]) -> None:
        """Until its figures are so."""
        async with asyncio.timeout(30):
            while not condition(self.figures):
                self._changed.clear()
                await self._changed.wait()


def relay_of(home: Path, limits: RelayLimits = FAST, key: str = "key") -> Watched:
    return Watched(RelayConfig(home / key, ("/ip4/127.0.0.1/tcp/0",), limits=limits))


def at(relay: RelayProcess) -> str:
    """Its address with its id."""
    return f"{relay.addresses[0]}/p2p/{relay.peer}"


async def echo_handler(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything back, until either end goes."""
    try:
        while data := await reader.read(MIB):
            writer.write(data)
            await writer.drain()
    except (OSError, RuntimeError):
        pass
    finally:
        writer.close()


async def echoed(ends: Ends, blob: bytes) -> bytes:
    """What comes back of it before the stream ends."""
    reader, writer = ends
    back = bytearray()

    async def send() -> None:
        for start in range(0, len(blob), MIB // 4):
            writer.write(blob[start : start + MIB // 4])
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(60):
            while len(back) < len(blob) and (piece := await reader.read(MIB)):
                back += piece
    except OSError:
        pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()
    return bytes(back)


@pytest.mark.parametrize("flags", [("-noise=0", "-tls=1"), ("-noise=1", "-tls=0")])
def test_p2pd_reserves_is_dialled_through_the_relay_and_8_mib_come_back_intact(
    home: Path, flags: tuple[str, str]
) -> None:
    blob = os.urandom(8 * MIB)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            relay = await stack.enter_async_context(relay_of(home))
            target = await stack.enter_async_context(go_peer(home, 1, at(relay), *flags))
            source = await stack.enter_async_context(go_peer(home, 2, None, *flags))
            await relay.until(lambda now: now.reservations == 1)
            await target.attachment.p2p.add_binary_stream_handler("echo", echo_handler)
            await source.control.dial(target.peer, [f"{at(relay)}/p2p-circuit/p2p/{target.peer}"])
            ends = await source.control.open(target.peer, "echo")
            assert await echoed(ends, blob) == blob
            await relay.until(lambda now: now.circuits == 1 and now.bytes > 2 * len(blob))
            assert relay.pid is not None and psutil.Process(relay.pid).memory_info().rss < 200e6
            await source.control.disconnect(target.peer)
            await relay.until(lambda now: now.circuits == 0 and now.connections == 2)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (RelayLimits(circuit_bytes=2 * MIB, circuit_rate=None, total_rate=None), "bytes"),
        (RelayLimits(circuit_s=2.0, circuit_rate=1e6), "duration"),
    ],
)
def test_a_limit_cuts_p2pds_circuit_and_the_next_one_is_as_good(home: Path, limits: RelayLimits, why: str) -> None:
    blob = os.urandom(8 * MIB)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            relay = await stack.enter_async_context(relay_of(home, limits))
            target = await stack.enter_async_context(go_peer(home, 1, at(relay)))
            source = await stack.enter_async_context(go_peer(home, 2))
            await relay.until(lambda now: now.reservations == 1)
            await target.attachment.p2p.add_binary_stream_handler("echo", echo_handler)
            for number in (1, 2):
                await source.control.dial(target.peer, [f"{at(relay)}/p2p-circuit/p2p/{target.peer}"])
                back = await echoed(await source.control.open(target.peer, "echo"), blob)
                assert back == blob[: len(back)] and MIB // 4 < len(back) < len(blob)
                await relay.until(lambda now, number=number: now.ended == {why: number})  # type: ignore[misc]
            assert relay.figures.reservations == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("security", "host"), [(NOISE, "ip4/127.0.0.1"), (TLS, "ip6/::1")])
def test_a_py_libp2p_peer_identifies_pings_reserves_and_is_reached(home: Path, security: str, host: str) -> None:
    async def scenario() -> None:
        config = RelayConfig(home / "key", (f"/{host}/tcp/0",), limits=FAST)
        async with Watched(config) as relay, py_peer(11, security) as target, py_peer(12, security) as source:
            for peer in (target, source):
                assert await peer("connect", address=at(relay)) == {}
            known = await source("identify")
            assert known["listen"] == list(relay.addresses) and known["observed"].startswith(f"/{host}/tcp/")
            assert "/libp2p/circuit/relay/0.2.0/hop" in known["protocols"]
            assert (await source("ping"))["us"] >= 0
            answer = await target("reserve")
            assert answer["status"] == OK and answer["addrs"] == [at(relay)]
            assert answer["voucher"] == [relay.peer, target.peer, relay.peer]
            assert 3500 < answer["expire"] - time.time() < 3610
            assert answer["limit"] == [int(FAST.circuit_s or 0), FAST.circuit_bytes]
            assert await source("dial", peer=target.peer) == {"status": OK}
            assert (await source("send", size=8 * MIB))["ok"]

    asyncio.run(scenario())


def test_an_end_is_passed_on_alone_and_a_cut_cuts_both(home: Path) -> None:
    async def scenario() -> None:
        async with relay_of(home) as relay, py_peer(11) as target, py_peer(12) as source:
            for peer in (target, source):
                await peer("connect", address=at(relay))
            await target("reserve")
            for number in (1, 2, 3):
                assert await source("dial", peer=target.peer, number=number) == {"status": OK}
                assert (await source("send", size=MIB, number=number))["ok"]
            await source("close", number=1)  # the target has read to the end, and then ends it too
            assert (await source("read", number=1))["error"] == "StreamEOF"
            await relay.until(lambda now: now.ended == {"closed": 1} and now.circuits == 2)
            await source("close", number=2, half=False)
            await relay.until(lambda now: now.ended == {"closed": 1, "cut": 1} and now.circuits == 1)
            target.process.kill()
            assert (await source("read", number=3))["error"]  # py-libp2p takes a reset for an end
            await relay.until(lambda now: now.ended == {"closed": 1, "cut": 2} and now.circuits == 0)
            assert relay.figures.reservations == 0 and relay.figures.connections == 1
            assert await source("dial", peer=target.peer) == {"status": NO_RESERVATION}

    asyncio.run(scenario())


def test_peers_of_one_address_get_what_its_limits_say_and_are_told_what_is_missing(home: Path) -> None:
    limits = RelayLimits(reservations_ip=1, circuits_peer=2, total_rate=None)

    async def scenario() -> None:
        async with relay_of(home, limits) as relay, py_peer(11) as first, py_peer(12) as second:
            for peer in (first, second):
                await peer("connect", address=at(relay))
            assert (await first("reserve"))["status"] == OK
            assert (await second("reserve"))["status"] == REFUSED
            assert (await second("reserve", name=first.peer))["status"] == REFUSED  # another's name does not help
            assert (await first("reserve"))["status"] == OK
            assert [(await second("dial", peer=first.peer, number=n))["status"] for n in range(3)] == [OK, OK, LIMIT]
            assert (await second("dial", peer=second.peer))["status"] == NO_RESERVATION
            relay.allow(frozenset({second.peer}))
            await relay.until(lambda now: now.reservations == 0)
            assert (await first("reserve"))["status"] == DENIED
            assert (await second("reserve"))["status"] == OK
            await relay.until(lambda now: now.refused.get("not allowed") == 1)
            assert relay.figures.refused == {
                "reservations of an address": 2,
                "circuits of a peer": 1,
                "no reservation": 1,
                "not allowed": 1,
            }

    asyncio.run(scenario())


def test_no_relay_is_reached_over_another(home: Path) -> None:
    """It does not take part in the stop protocol, so no connection of its own ever comes through a circuit."""
    Identity.from_seed(bytes([1]) * 32).save(home / "other")

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(relay_of(home))
            second = await stack.enter_async_context(relay_of(home, key="other"))
            peer = await stack.enter_async_context(py_peer(11))
            await peer("connect", address=at(second))
            assert not (await peer("protocol", name=STOP))["ok"]
            await peer("connect", address=at(first))
            assert await peer("dial", peer=second.peer) == {"status": NO_RESERVATION}
            go = await stack.enter_async_context(go_peer(home, 1))
            with pytest.raises(TransportError, match="NO_RESERVATION"):
                await go.control.dial(second.peer, [f"{at(first)}/p2p-circuit/p2p/{second.peer}"])  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_sockets_of_one_address_are_counted_before_they_have_said_anything(home: Path) -> None:
    async def scenario() -> None:
        async with relay_of(home, RelayLimits(connections_ip=3)) as relay:
            port = int(relay.addresses[0].rpartition("/")[2])
            sockets = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            await relay.until(lambda now: now.refused == {"connections of an address": 2} and now.connections == 3)
            for _, writer in sockets:
                writer.close()
            await relay.until(lambda now: now.connections == 0)
            async with py_peer(11) as peer:
                assert await peer("connect", address=at(relay)) == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("ask", [signal.SIGKILL, signal.SIGSTOP])
def test_a_relay_that_dies_or_freezes_is_back_at_its_port(
    home: Path, ask: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_process, "SILENT_S", 3.0)

    async def scenario() -> None:
        async with relay_of(home) as relay:
            address, pid = at(relay), relay.pid
            assert pid is not None
            await relay.until(lambda now: now.up_s > 0)
            os.kill(pid, ask)
            await relay.until(lambda now: relay.restarts > 0 and now.up_s > 0)
            assert relay.pid != pid and not psutil.pid_exists(pid) and at(relay) == address
            async with py_peer(11) as peer:
                await peer("connect", address=address)
                assert (await peer("reserve"))["status"] == OK
            last = relay.pid
        assert last is not None and not psutil.pid_exists(last)

    asyncio.run(scenario())


OWNER = """
import asyncio, sys
from pathlib import Path
from dht.relay_process import RelayConfig, RelayProcess

async def main():
    async with RelayProcess(RelayConfig(Path(sys.argv[1]) / "key", ("/ip4/127.0.0.1/tcp/0",))) as relay:
        print(relay.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_no_relay_survives_kill_9_of_its_parent(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, home], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        orphan = psutil.Process(int(owner.stdout.readline()))
        assert "dht.relay" in orphan.cmdline()
        owner.kill()
        orphan.wait(timeout=10)


@pytest.mark.parametrize("how", ["input", "SIGTERM"])
def test_it_ends_by_itself_when_its_input_does_or_when_it_is_told(home: Path, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dht.relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f'{{"key": "{home}/key", "listen": ["/ip6/::1/tcp/0", "/ip4/127.0.0.1/tcp/0"]}}\n')
        process.stdin.flush()
        assert '"ready"' in process.stdout.readline()
        modules = Path(f"/proc/{process.pid}/maps")
        assert not modules.exists() or "torch" not in modules.read_text()
        if how == "input":
            process.stdin.close()
        else:
            process.terminate()
        assert process.wait(timeout=10) == 0


def test_what_is_wrong_is_told_in_words(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        relay = RelayProcess(RelayConfig(home / "key", (f"/ip4/127.0.0.1/tcp/{port}",)))
        with pytest.raises(EnvironmentFault, match=f"cannot listen on 127.0.0.1 port {port}") as caught:
            asyncio.run(relay.start())
        assert "--listen" in caught.value.remedy and relay.pid is None
    (home / "nonsense").write_bytes(b"nonsense")
    for name, said in (("nonsense", "does not hold"), ("none", "cannot read")):
        with pytest.raises(EnvironmentFault, match=said):
            asyncio.run(relay_of(home, key=name).start())
