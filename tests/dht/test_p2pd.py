"""p2pd's life: tied to ours, never shared, never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from dht import leftovers
from dht import p2pd as module
from dht.p2pd import P2pd, P2pdConfig, find_binary
from peer.identity import Identity
from protocols.errors import EnvironmentFault

OWNER = """
import asyncio, sys
from pathlib import Path
from dht.p2pd import P2pd, P2pdConfig

async def main():
    home = Path(sys.argv[1])
    p2pd = P2pd(P2pdConfig(home, home / "key", host="127.0.0.1"))
    await p2pd.start()
    print(p2pd.pid, p2pd.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def config(tmp_path: Path) -> P2pdConfig:
    Identity.from_seed(bytes(32)).save(tmp_path / "key")
    return P2pdConfig(tmp_path, tmp_path / "key", host="127.0.0.1")


def test_no_p2pd_survives_kill_9_and_the_port_is_free_again(config: P2pdConfig) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(config.home)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    ) as owner:
        assert owner.stdout is not None
        pid, port = map(int, owner.stdout.readline().split())
        orphan = psutil.Process(pid)
        assert orphan.is_running() and orphan.exe() == str(find_binary().resolve())
        with pytest.raises(EnvironmentFault, match=rf"another daemon \(process {owner.pid}\) uses"):
            leftovers.reap(config.home / "p2pd.pid")
        owner.kill()
        orphan.wait(timeout=5)

    async def restart() -> None:
        async with P2pd(P2pdConfig(config.home, config.key, port=port, host="127.0.0.1")) as p2pd:
            assert p2pd.port == port and p2pd.pid != pid

    asyncio.run(restart())
    assert not (config.home / "p2pd.pid").exists()


def test_leftover_is_reaped_only_when_it_is_surely_ours(config: P2pdConfig, tmp_path: Path) -> None:
    trace = config.home / "p2pd.pid"
    sockets = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))
    with subprocess.Popen(
        [find_binary(), f"-listen=/unix{sockets}/p2pd.sock", "-hostAddrs=/ip4/127.0.0.1/tcp/0", "-b=0"],
        stdout=subprocess.PIPE,
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()
        leftovers.record(trace, pid=left.pid, directory=sockets)
        true = json.loads(trace.read_text()) | {"owner": 2**22 - 1}  # a daemon that is no more
        for wrong in ({"started": true["started"] - 10}, {"executable": sys.executable}):
            trace.write_text(json.dumps(true | wrong | {"directory": str(tmp_path / "none")}))
            assert not leftovers.reap(trace) and left.poll() is None
        trace.write_text(json.dumps(true))

        async def start() -> None:
            async with P2pd(config):
                assert left.poll() is not None

        asyncio.run(start())
        assert not sockets.exists()


@pytest.mark.parametrize("text", ["", "null", "[]", '{"pid": 1}', json.dumps({"pid": "x"})])
def test_unreadable_trace_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "p2pd.pid").write_text(text)
    assert not leftovers.reap(tmp_path / "p2pd.pid")


def test_own_process_is_never_reaped(tmp_path: Path) -> None:
    me = psutil.Process()
    trace = leftovers.Trace(me.pid, me.create_time() - 100, me.exe(), 2**22 - 1, 0.0, "")
    (tmp_path / "p2pd.pid").write_text(json.dumps(asdict(trace)))
    assert not leftovers.reap(tmp_path / "p2pd.pid")


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_port_in_use_is_one_clear_error(config: P2pdConfig, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        p2pd = P2pd(P2pdConfig(config.home, config.key, port=port, host="127.0.0.1"))
        with pytest.raises(EnvironmentFault, match=f"port {port} is in use") as caught:
            asyncio.run(p2pd.start())
        assert "--p2p-port" in caught.value.remedy
        assert p2pd.pid is None and not (config.home / "p2pd.pid").exists()


def test_a_second_p2pd_does_not_share_the_port(config: P2pdConfig, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with P2pd(config) as first:
            other = tmp_path / "other"
            Identity.from_seed(bytes([1]) * 32).save(other / "key")
            with pytest.raises(EnvironmentFault, match="in use"):
                await P2pd(P2pdConfig(other, other / "key", port=first.port, host="127.0.0.1")).start()

    asyncio.run(scenario())


def test_corrupt_key_is_told_in_words(config: P2pdConfig) -> None:
    assert config.key is not None
    config.key.write_bytes(b"nonsense")
    p2pd = P2pd(config)
    with pytest.raises(EnvironmentFault, match="p2pd ended at once"):
        asyncio.run(p2pd.start())
    assert p2pd.pid is None and not (config.home / "p2pd.pid").exists()


def test_stop_leaves_neither_process_nor_files(config: P2pdConfig) -> None:
    async def scenario() -> tuple[int, str]:
        async with P2pd(config) as p2pd:
            assert p2pd.pid is not None
            return p2pd.pid, p2pd.control

    pid, control = asyncio.run(scenario())
    assert not psutil.pid_exists(pid)  # a zombie would still exist
    assert not os.path.exists(os.path.dirname(control.removeprefix("/unix")))


class Restarts:
    """Told of every restart of a p2pd that a test maltreats."""

    def __init__(self, config: P2pdConfig) -> None:
        self.p2pd = P2pd(config, self._restarted)
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    async def _restarted(self, control: str) -> None:
        self._queue.put_nowait(control)

    async def next(self) -> float:
        """Seconds until p2pd is there again."""
        began = time.monotonic()
        async with asyncio.timeout(20):
            await self._queue.get()
        return time.monotonic() - began


def test_killed_p2pd_is_restarted_at_once_and_one_that_dies_quickly_ever_later(
    config: P2pdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY_S", 1000.0)

    async def scenario() -> None:
        restarts = Restarts(config)
        async with restarts.p2pd as p2pd:
            pauses = []
            for _ in range(4):
                assert p2pd.pid is not None
                os.kill(p2pd.pid, signal.SIGKILL)
                pauses.append(await restarts.next())
            assert pauses[1] > 0.25 and pauses[2] > 0.5 and pauses[3] > 1.0, pauses
            assert pauses[0] < pauses[3]
            monkeypatch.setattr(module, "STEADY_S", 0.0)
            assert p2pd.pid is not None
            os.kill(p2pd.pid, signal.SIGKILL)
            assert await restarts.next() < 2.0, "the next pause would have been 2 s"

    asyncio.run(scenario())


def test_frozen_p2pd_is_ended_and_started_again(config: P2pdConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.1)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)

    async def scenario() -> None:
        restarts = Restarts(config)
        async with restarts.p2pd as p2pd:
            assert p2pd.pid is not None
            frozen = psutil.Process(p2pd.pid)
            frozen.suspend()
            await restarts.next()
            assert not frozen.is_running() and p2pd.pid not in {None, frozen.pid} and p2pd.restarts == 1
            os.unlink(p2pd.control.removeprefix("/unix"))  # whatever cleared /tmp: nobody can speak to it any more
            await restarts.next()
            assert p2pd.restarts == 2
            with pytest.raises(TimeoutError):  # one that answers is left alone
                async with asyncio.timeout(1):
                    await restarts.next()

    asyncio.run(scenario())


def test_our_own_standstill_is_not_taken_for_p2pds(config: P2pdConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 1.5)

    async def scenario() -> None:
        async with P2pd(config) as p2pd:
            assert p2pd.pid is not None
            process = psutil.Process(p2pd.pid)
            process.suspend()
            async with asyncio.timeout(10):
                while await p2pd._answers(0.1) is not False:  # on a loaded machine it does not stop at once
                    pass
            asking = asyncio.create_task(p2pd._answers(0.1))
            await asyncio.sleep(0)
            time.sleep(2)  # noqa: ASYNC251 - the loop stands still
            assert await asking is None
            process.resume()
            assert await p2pd._answers(5)

    asyncio.run(scenario())


def test_a_full_disk_does_not_keep_p2pd_from_coming_back(config: P2pdConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise EnvironmentFault("cannot write p2pd.pid: No space left on device")

    async def scenario() -> None:
        restarts = Restarts(config)
        async with restarts.p2pd as p2pd:
            monkeypatch.setattr(leftovers, "record", full)
            assert p2pd.pid is not None
            os.kill(p2pd.pid, signal.SIGKILL)
            await restarts.next()
            assert p2pd.pid is not None and p2pd.restarts == 1
        with pytest.raises(EnvironmentFault, match="No space"):
            await P2pd(config).start()

    asyncio.run(scenario())


def test_a_relay_that_p2pd_does_not_take_is_dropped(config: P2pdConfig) -> None:
    """It ends at once on such a flag; before, it never came up again."""

    async def scenario() -> None:
        back = asyncio.Event()

        async def restarted(_: str) -> None:
            back.set()

        async with P2pd(config, restarted) as p2pd:
            assert p2pd.reserve_at(["garbage"])
            async with asyncio.timeout(15):
                await back.wait()
            assert p2pd.relays == () and p2pd.pid is not None

    asyncio.run(scenario())


def test_a_crash_is_counted_though_relays_were_chosen_while_p2pd_was_dead(
    config: P2pdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the choice was taken for the reason of the next crash."""
    monkeypatch.setattr(module, "STEADY_S", 1000.0)
    relay = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.from_seed(bytes([2]) * 32).peer}"

    async def scenario() -> None:
        restarts = Restarts(config)
        async with restarts.p2pd as p2pd:
            for number in range(1, 4):
                assert p2pd.pid is not None
                os.kill(p2pd.pid, signal.SIGKILL)
                if number == 2:  # after the first death there is no pause
                    async with asyncio.timeout(5):
                        while p2pd.pid is not None:  # noqa: ASYNC110 - nobody tells
                            await asyncio.sleep(0)
                    assert p2pd.reserve_at([relay])
                await restarts.next()
                assert p2pd.restarts == number
            assert p2pd.relays == (relay,)

    asyncio.run(scenario())
