"""What strangers answer: libp2p, QUIC and routers, each asked on loopback, and those that say something else."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht import probe
from dht.p2pd import P2pd, P2pdConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

HOST = "127.0.0.1"
OFFER = b"HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\nLOCATION: http://x/\r\n\r\n"


@asynccontextmanager
async def replying(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[int]:
    """A UDP port that says this to what it is told."""

    class Server(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            if (said := answer(data)) is not None:
                transport.sendto(said, addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Server, local_addr=(HOST, 0))
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


def test_p2pd_is_recognised_on_both_transports(tmp_path: Path) -> None:
    async def main() -> None:
        async with P2pd(P2pdConfig(tmp_path, None, host=HOST, quic=True)) as p2pd:
            assert await probe.greets(HOST, p2pd.port, within=5)
            assert await probe.speaks_quic(HOST, p2pd.port, within=5)
        with pytest.raises(ConnectionRefusedError):
            await probe.greets(HOST, p2pd.port, within=5)
        with pytest.raises(ConnectionRefusedError):
            await probe.speaks_quic(HOST, p2pd.port, within=5)

    asyncio.run(main())


@pytest.mark.parametrize("word", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x13/multistream/1.0", b"x" * 4096])
def test_whoever_else_listens_is_not_taken_for_libp2p(word: bytes) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word)
        writer.close()

    async def main() -> bool:
        async with await asyncio.start_server(other, HOST, 0) as server:
            return await probe.greets(HOST, server.sockets[0].getsockname()[1], within=5)

    assert not asyncio.run(main())


def test_who_listens_and_says_nothing_costs_no_more_than_the_deadline() -> None:
    async def main(port: int) -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        return await probe.greets(HOST, port, within=0.2), loop.time() - began

    with socket.create_server((HOST, 0)) as silent:
        speaks, seconds = asyncio.run(main(silent.getsockname()[1]))
    assert not speaks and 0.1 < seconds < 5


def test_an_address_that_swallows_everything_times_out() -> None:
    async def main(port: int) -> None:
        with pytest.raises(TimeoutError):
            await probe.greets(HOST, port, within=0.3)

    with socket.create_server((HOST, 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for each in (first, second):  # the queue is full then, and Linux drops what more comes
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        asyncio.run(main(full.getsockname()[1]))


@given(st.binary(max_size=64))
def test_no_answer_but_a_negotiation_of_our_own_ids_is_quic(said: bytes) -> None:
    async def main() -> bool:
        async with replying(lambda _: said) as port:
            return await probe.speaks_quic(HOST, port, within=0.02)

    assert not asyncio.run(main())


def test_an_echo_is_no_quic() -> None:
    async def main() -> bool:
        async with replying(lambda data: data) as port:
            return await probe.speaks_quic(HOST, port, within=0.2)

    assert not asyncio.run(main())


def test_a_router_that_offers_upnp_is_found_although_the_first_question_is_lost() -> None:
    async def main() -> tuple[str | None, list[bytes]]:
        asked: list[bytes] = []

        def answer(data: bytes) -> bytes | None:
            asked.append(data)
            return OFFER if len(asked) > 1 else None

        async with replying(answer) as port:
            return await probe.find_upnp((HOST, port), within=0.4), asked

    found, asked = asyncio.run(main())
    assert found == HOST
    assert asked[0].startswith(b"M-SEARCH * HTTP/1.1\r\n") and asked[0].endswith(b"\r\n\r\n")
    assert b"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n" in asked[0]


def test_a_printer_is_no_router() -> None:
    async def main() -> str | None:
        async with replying(lambda _: b"HTTP/1.1 200 OK\r\nST: urn:printer\r\n\r\n") as port:
            return await probe.find_upnp((HOST, port), within=0.1)

    assert asyncio.run(main()) is None


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (bytes([0, 128, 0, 0, 0, 0, 0, 9, 198, 51, 100, 7]), ipaddress.IPv4Address("198.51.100.7")),
        (bytes([0, 128, 0, 3, 0, 0, 0, 9, 0, 0, 0, 0]), None),
        (bytes([0, 128, 0, 0, 0, 0, 0, 9, 198, 51, 100]), None),
        (b"", None),
    ],
    ids=["an address", "network failure", "cut off", "empty"],
)
def test_nat_pmp_tells_the_outside_address(said: bytes, found: ipaddress.IPv4Address | None) -> None:
    async def main() -> ipaddress.IPv4Address | None:
        async with replying(lambda data: said if data == b"\0\0" else None) as port:
            return await probe.ask_nat_pmp(HOST, port, within=0.2)

    assert asyncio.run(main()) == found


def test_the_default_route_names_the_router() -> None:
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    near = "eth0\t004DA8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    default = "eth0\t00000000\t014DA8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    assert probe.default_gateway(head + near + default) == "192.168.77.1"
    assert probe.default_gateway(head + near) is None
    assert probe.default_gateway("") is None
    assert probe.default_gateway(head + "eth0\tzz\n" + default) == "192.168.77.1"
