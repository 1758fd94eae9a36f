"""Proofs against p2pd, against a libp2p listener made here, and against whatever a hostile one may say."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dht.certificate import EXTENSION, SIGNED, owner
from dht.dialback import Unproven, prove
from peer.identity import Identity
from protocols.errors import TransportError
from protocols.ids import public_key
from protocols.reach import CLOSED, FOREIGN, SILENT, STRANGER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]
    Listener = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HOME, OTHER = (Identity.from_seed(bytes([seed]) * 32) for seed in (1, 2))
KEY = ec.derive_private_key(12345, ec.SECP256R1())
MULTISTREAM, TLS = b"\x13/multistream/1.0.0\n", b"\x0b/tls/1.0.0\n"
NOW = datetime(2020, 1, 1, tzinfo=UTC)


def subject(key: ec.EllipticCurvePrivateKey = KEY) -> bytes:
    """What a peer signs of its certificate's key."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def signed_key(who: Identity = HOME, what: bytes | None = None) -> bytes:
    """The extension: DER of a sequence of two strings, written here by its own rules."""
    key = bytes.fromhex("08011220") + public_key(who.peer)
    signature = who.sign(SIGNED + subject() if what is None else what)
    body = b"\x04" + bytes([len(key)]) + key + b"\x04" + bytes([len(signature)]) + signature
    return b"\x30" + bytes([len(body)]) + body


def certificate(
    extension: bytes | None = None, *, issuer: ec.EllipticCurvePrivateKey = KEY, critical: bool = False
) -> bytes:
    """DER of a certificate of ``KEY``, long expired: nobody's clock matters."""
    name = x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(7).not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1))
    if extension is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(EXTENSION, extension), critical=critical)
    return builder.sign(issuer, hashes.SHA256()).public_bytes(Encoding.DER)


GOOD = certificate(signed_key())


def test_a_certificate_names_its_peer() -> None:
    assert owner(GOOD) == owner(certificate(signed_key(), critical=True)) == HOME.peer
    assert owner(certificate(signed_key(OTHER))) == OTHER.peer


@pytest.mark.parametrize(
    ("der", "text"),
    [
        (b"", "not a certificate"),
        (GOOD[:-1], "not a certificate"),
        (GOOD + b"\0", "not a certificate"),
        (bytes(9000), "9000 bytes"),
        (certificate(), "not a certificate of libp2p"),
        (certificate(signed_key(), issuer=ec.derive_private_key(54321, ec.SECP256R1())), "not a certificate"),
        (certificate(b""), "without an Ed25519 key"),
        (certificate(signed_key() + b"\0"), "without an Ed25519 key"),
        (certificate(b"\x30\x68\x04\x24\x08\x00" + signed_key()[6:]), "without an Ed25519 key"),
        (certificate(signed_key(what=subject())), "not signed"),
        (certificate(signed_key(what=SIGNED + subject(ec.derive_private_key(9, ec.SECP256R1())))), "not signed"),
    ],
)
def test_other_certificates_are_refused_in_words(der: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        owner(der)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_change_of_a_certificate_makes_it_another_peers(at: int, by: int) -> None:
    changed = GOOD[:at] + bytes([GOOD[at] ^ by]) + GOOD[at + 1 :]
    with contextlib.suppress(ValueError):
        assert owner(changed) == HOME.peer


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_certificate_and_no_extension(raw: bytes) -> None:
    for der in (raw, certificate(raw)):
        with pytest.raises(ValueError):
            owner(der)


@contextlib.asynccontextmanager
async def listening(listener: Listener, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address of a listener on loopback."""
    tasks: set[Any] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, EOFError):
                await listener(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield f"/ip{6 if ':' in host else 4}/{host}/tcp/{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)


def libp2p(tmp_path: Path, der: bytes = GOOD) -> Listener:
    """A listener as the specification has it, which demands a certificate as p2pd does."""
    pem = tmp_path / "pem"
    pem.write_bytes(
        ssl.DER_cert_to_PEM_cert(der).encode() + KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.set_alpn_protocols(["yamux/1.0.0", "libp2p"])
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MULTISTREAM)
        assert await reader.readexactly(len(MULTISTREAM + TLS)) == MULTISTREAM + TLS
        writer.write(TLS)
        await talk_tls(context, reader, writer)

    return serve


async def talk_tls(context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server's side of a handshake, until the other one hangs up."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while data := await reader.read(4096):
        incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        writer.write(outgoing.read())


def scripted(raw: bytes, *, then_wait: bool = False) -> Listener:
    """A listener that says this and hangs up, or waits for the other side to do so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            while then_wait and await reader.read(4096):
                pass

    return serve


async def found_at(address: str, within: float = 5.0, peer: Identity = HOME) -> str:
    """What ``prove`` finds."""
    with pytest.raises(Unproven) as caught:
        await prove(address, peer.peer, within=within)
    assert str(caught.value).startswith(f"{peer.peer}: {address}: ")
    return caught.value.found


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_a_listener_of_the_specification_is_proven_to_be_itself_and_nobody_else(runner: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with listening(libp2p(tmp_path)) as address:
            await prove(address, HOME.peer)
            await prove(f"{address}/p2p/{HOME.peer}", HOME.peer)
            with pytest.raises(TransportError, match=f"{OTHER.peer}: {address}: another peer .*{HOME.peer}"):
                await prove(address, OTHER.peer)
        assert await found_at(address) == CLOSED
        assert asyncio.all_tasks() == {asyncio.current_task()}

    runner(scenario())


def test_an_ipv6_address_is_proven_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 on loopback")

    async def scenario() -> None:
        async with listening(libp2p(tmp_path), "::1") as address:
            await prove(address, HOME.peer)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "der", [certificate(), certificate(signed_key(what=b"something else"))], ids=["plain TLS", "borrowed key"]
)
def test_whoever_only_names_the_peer_proves_nothing(tmp_path: Path, der: bytes) -> None:
    async def scenario() -> None:
        async with listening(libp2p(tmp_path, der)) as address:
            assert await found_at(address) == FOREIGN

    asyncio.run(scenario())


def test_the_certificate_without_its_key_proves_nothing(tmp_path: Path) -> None:
    """What anybody has seen who ever connected to the peer: replayed, the handshake's signature does not fit."""

    async def scenario() -> None:
        answer = asyncio.Future[bytes]()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition("/")[2]))
            far_writer.write(await reader.readexactly(len(MULTISTREAM + TLS)))
            writer.write(await far_reader.readexactly(len(MULTISTREAM + TLS)))
            far_writer.write(await reader.read(4096))
            answer.set_result(await far_reader.read(4096))
            writer.write(answer.result())
            far_writer.transport.abort()

        async with listening(libp2p(tmp_path)) as address, listening(between) as forwarded:
            await prove(forwarded, HOME.peer)  # a forwarded port leads to the peer, whoever forwards it
            raw = MULTISTREAM + TLS + answer.result()
        async with listening(scripted(raw, then_wait=True)) as address:
            assert await found_at(address) == FOREIGN

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("raw", "then_wait", "expected"),
    [
        (b"", False, FOREIGN),
        (b"", True, SILENT),
        (MULTISTREAM, True, SILENT),
        (b"SSH-2.0-OpenSSH_9.2\r\n", True, FOREIGN),
        (MULTISTREAM + b"\x03na\n", True, FOREIGN),
        (MULTISTREAM + TLS, True, SILENT),
        (MULTISTREAM + TLS, False, FOREIGN),
        (MULTISTREAM + TLS + b"\x15\x03\x03\x00\x02\x02\x28", True, FOREIGN),
        (MULTISTREAM + TLS + b"\x14\x03\x03\x00\x01\x01" * 10_000, True, FOREIGN),
        (MULTISTREAM + TLS + b"\x16\x03\x03\x40\x00" + bytes(1 << 20), True, FOREIGN),
    ],
)
def test_what_answers_otherwise_is_told_apart(raw: bytes, then_wait: bool, expected: str) -> None:
    async def scenario() -> None:
        async with listening(scripted(raw, then_wait=then_wait)) as address:
            assert await found_at(address, within=0.3 if expected == SILENT else 5.0) == expected

    asyncio.run(scenario())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 3), st.binary(max_size=300), st.booleans())
def test_no_answer_makes_it_raise_anything_else_or_wait(start: int, raw: bytes, then_wait: bool) -> None:
    lead = (b"", MULTISTREAM, MULTISTREAM + TLS, MULTISTREAM + TLS + b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03")

    async def scenario() -> None:
        async with listening(scripted(lead[start] + raw, then_wait=then_wait)) as address:
            async with asyncio.timeout(2):
                assert await found_at(address, within=0.05) in {FOREIGN, SILENT}

    asyncio.run(scenario())


def test_a_handshake_without_end_is_cut_off() -> None:
    """A first message that says it has 65,000 bytes: OpenSSL would wait for all of them, and for as many again."""
    message = b"\x02" + (65_000).to_bytes(3, "big") + bytes(60_000)
    parts = [message[at : at + 8192] for at in range(0, len(message), 8192)]
    records = b"".join(b"\x16\x03\x03" + len(part).to_bytes(2, "big") + part for part in parts)

    async def scenario() -> None:
        async with listening(scripted(MULTISTREAM + TLS + records, then_wait=True)) as address:
            with pytest.raises(Unproven, match="the handshake has no end"):
                await prove(address, HOME.peer)

    asyncio.run(scenario())


def test_only_ip_addresses_and_tcp_ports_are_dialled() -> None:
    for address in (
        "/dns4/localhost/tcp/1",
        "/ip4/127.0.0.1/udp/1/quic-v1",
        "/tcp/1",
        "/ip4/127.0.0.1/tcp/1/p2p/x",
        "",
    ):
        with pytest.raises(ValueError):
            asyncio.run(prove(address, HOME.peer))


def test_p2pd_is_proven_where_it_listens_connected_or_not(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            [address] = [each for each in one.transport.addresses() if "/tcp/" in each]
            await prove(address, one.transport.peer)
            await two.transport.connect(one.transport.peer, [address])
            await prove(address, one.transport.peer)
            bare = address.partition("/p2p/")[0]
            assert await found_at(bare, peer=two.identity) == STRANGER
        assert await found_at(bare, peer=one.identity) == CLOSED

    asyncio.run(scenario())
