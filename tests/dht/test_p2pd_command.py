"""What p2pd is started with; and that it starts anew with the relays it is given, at its port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from dht import p2pd as module
from dht.p2pd import P2pd, P2pdConfig
from dht.p2pd_command import command, environment
from peer.identity import Identity

CONFIG = P2pdConfig(Path("/home"), Path("/home/key"))
RELAY = f"/ip4/127.0.0.1/tcp/4002/p2p/{Identity.from_seed(b'r' * 32).peer}"


def flags(config: P2pdConfig = CONFIG, *relays: str) -> list[str]:
    """For port 9."""
    return command(Path("/bin/p2pd"), config, control="/unix/s", port=9, relays=relays)


def test_it_listens_for_tcp_with_its_own_key_and_for_quic_where_that_punches_holes() -> None:
    said = flags()
    assert said[0] == "/bin/p2pd" and "-id=/home/key" in said and "-listen=/unix/s" in said
    assert "-hostAddrs=/ip4/0.0.0.0/tcp/9" in said
    both = "-hostAddrs=/ip4/0.0.0.0/tcp/9,/ip4/0.0.0.0/udp/9/quic-v1"
    observer = flags(P2pdConfig(Path("/home"), None, quic=True))
    assert both in observer and not [each for each in observer if each.startswith("-id=")]
    assert both in flags(CONFIG, "one")


def test_it_listens_in_each_family_at_one_port() -> None:
    both = ("0.0.0.0", "::")
    said = command(Path("/bin/p2pd"), CONFIG, control="/unix/s", port=9, relays=(), hosts=both)
    assert "-hostAddrs=/ip4/0.0.0.0/tcp/9,/ip6/::/tcp/9" in said
    said = command(Path("/bin/p2pd"), CONFIG, control="/unix/s", port=9, relays=["one"], hosts=both)
    tcp, quic = "/ip4/0.0.0.0/tcp/9,/ip6/::/tcp/9", "/ip4/0.0.0.0/udp/9/quic-v1,/ip6/::/udp/9/quic-v1"
    assert f"-hostAddrs={tcp},{quic}" in said
    assert "-hostAddrs=/ip6/2001:db8::7/tcp/9" in flags(P2pdConfig(Path("/home"), None, host="2001:db8::7"))


@pytest.mark.parametrize(("host", "asks"), [("0.0.0.0", "1"), ("192.168.1.7", "1"), ("127.0.0.1", "0"), ("::1", "0")])
def test_the_router_is_asked_for_a_port_unless_all_stays_on_this_machine(host: str, asks: str) -> None:
    assert f"-natPortMap={asks}" in flags(P2pdConfig(Path("/home"), None, host=host))
    assert "-natPortMap=0" in flags(P2pdConfig(Path("/home"), None, host=host, maps=False))


def test_it_reserves_only_where_relays_are_named() -> None:
    config = P2pdConfig(Path("/home"), None, quic=True)
    usual, reserving = set(flags(config)), set(flags(config, "one", "two"))
    assert reserving - usual == {
        *("-autoRelay=1", "-relayDiscovery=0", "-forceReachabilityPrivate=1", "-trustedRelays=one,two"),
        "-dhtClient=1",
    }
    assert usual - reserving == {"-dhtServer=1"}, "nobody shall come through a relay to be served"
    assert "-relayService=0" in flags()


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (16, "8")])
def test_it_has_half_of_the_cores(cores: int, threads: str) -> None:
    assert environment(cores)["GOMAXPROCS"] == threads


def test_it_starts_anew_with_relays_once_at_its_port_and_that_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY_S", 1000.0)  # a crash would be paid for by a pause
    Identity.from_seed(bytes(32)).save(tmp_path / "key")
    restarted: asyncio.Queue[str] = asyncio.Queue()

    async def scenario() -> None:
        p2pd = P2pd(P2pdConfig(tmp_path, tmp_path / "key", host="127.0.0.1"), restarted.put)
        assert not p2pd.reserve_at(())
        async with p2pd, asyncio.timeout(30):
            first, port = p2pd.pid, p2pd.port
            assert first is not None and "-trustedRelays" not in " ".join(psutil.Process(first).cmdline())
            assert p2pd.reserve_at([RELAY]) and p2pd.relays == (RELAY,)
            assert await restarted.get() == p2pd.control
            assert p2pd.pid not in {None, first} and p2pd.port == port and p2pd.restarts == 0
            assert f"-trustedRelays={RELAY}" in psutil.Process(p2pd.pid).cmdline()
            second = p2pd.pid
            assert not p2pd.reserve_at([RELAY]) and p2pd.pid == second
            assert p2pd.reserve_at([])
            await restarted.get()
            assert "-trustedRelays" not in " ".join(psutil.Process(p2pd.pid).cmdline())
        assert p2pd.pid is None and not psutil.pid_exists(second)

    asyncio.run(scenario())


def test_relays_named_before_the_start_hold_from_the_start(tmp_path: Path) -> None:
    Identity.from_seed(bytes(32)).save(tmp_path / "key")

    async def scenario() -> None:
        p2pd = P2pd(P2pdConfig(tmp_path, tmp_path / "key", host="127.0.0.1"))
        assert p2pd.reserve_at([RELAY])
        async with p2pd:
            assert f"-trustedRelays={RELAY}" in psutil.Process(p2pd.pid).cmdline()

    asyncio.run(scenario())
