"""Whether an address leads to a peer, proven by a connection of our own.

p2pd opens no second connection to a peer that it is connected with, and tells nobody whom it met at an address. So
the first steps of libp2p's own handshake are made here, up to the moment when the other side has shown its key.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING

from protocols.errors import TransportError
from protocols.reach import CLOSED, FOREIGN, SILENT, STRANGER, UNABLE, WORDS, endpoint

from .certificate import owner

if TYPE_CHECKING:
    from protocols.ids import PeerId

    from .stream import Ends

PROVE_S = 5.0
"""For one proof, all of it."""
HANDSHAKE_BYTES = 16 * 1024
"""That we take in before the other side has shown its certificate; p2pd's take about 1.2 kB."""
READ_BYTES = 4096

_MULTISTREAM, _TLS = (bytes([len(name)]) + name for name in (b"/multistream/1.0.0\n", b"/tls/1.0.0\n"))


class Unproven(TransportError):
    """An address does not lead to the peer; ``found`` is what was found there, one of ``protocols.reach.WORDS``."""

    def __init__(self, peer: PeerId, address: str, found: str, detail: str = "") -> None:
        super().__init__(peer, f"{address}: {WORDS[found]}" + (f" ({detail})" if detail else ""))
        self.found = found


async def prove(address: str, peer: PeerId, *, within: float = PROVE_S) -> None:
    """Returns when ``peer`` itself has answered at ``/ip4|ip6/IP/tcp/PORT`` (``/p2p/<peer>`` may follow).

    Raises Unproven when somebody else or nobody does, or not within so many seconds; ValueError for no such address.
    """
    ip, port = endpoint(address.removesuffix(f"/p2p/{peer}"))
    if ip is None:
        raise ValueError(f"{address} has no IP address")
    try:
        async with asyncio.timeout(within):
            ends = await _connect(str(ip), port)
            try:
                await _choose_tls(ends)
                found = owner(await _certificate(ends))
            finally:
                ends[1].transport.abort()
    except _Nobody as error:
        raise Unproven(peer, address, error.found, str(error)) from error
    except TimeoutError as error:  # an OSError, as is every ssl.SSLError
        raise Unproven(peer, address, SILENT, f"for {within:.0f} s") from error
    except (OSError, EOFError, ValueError, RuntimeError) as error:  # uvloop: RuntimeError on a closed connection
        raise Unproven(peer, address, FOREIGN, _words(error)) from error
    if found != peer:
        raise Unproven(peer, address, STRANGER, found)


class _Nobody(Exception):
    """No connection was opened."""

    def __init__(self, found: str, text: str = "") -> None:
        super().__init__(text)
        self.found = found


async def _connect(host: str, port: int) -> Ends:
    try:
        return await asyncio.open_connection(host, port, limit=READ_BYTES)
    except ConnectionRefusedError as error:
        raise _Nobody(CLOSED) from error
    except TimeoutError:
        raise
    except (OSError, RuntimeError) as error:
        raise _Nobody(UNABLE, _words(error)) from error


async def _choose_tls(ends: Ends) -> None:
    """Agree on TLS (multistream-select 1.0): whoever speaks libp2p answers with exactly these bytes."""
    reader, writer = ends
    writer.write(_MULTISTREAM + _TLS)
    for expected in (_MULTISTREAM, _TLS):
        for part in (expected[:1], expected[1:]):  # a shorter answer is told from one that does not come
            if await reader.readexactly(len(part)) != part:
                raise ValueError("it does not take TLS")


async def _certificate(ends: Ends) -> bytes:
    """The certificate (DER) whose key the other side has shown that it holds.

    In TLS 1.3 that is before anything of ours but the first words is due. So nothing more is sent: whoever is asked
    gets no certificate of ours, and keeps no connection.
    """
    reader, writer = ends
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = _context().wrap_bio(incoming, outgoing)
    left = HANDSHAKE_BYTES
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
        else:
            return tls.getpeercert(binary_form=True) or b""
        data = await reader.read(min(left, READ_BYTES))
        if not data:
            raise ValueError("the handshake has no end" if not left else "it hung up")
        left -= len(data)
        incoming.write(data)


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    """CERT_NONE: no authority has signed a peer's certificate, and Python's ``ssl`` knows no extension of libp2p's.

    That the other side holds the certificate's key is checked all the same; whose it is, ``owner`` finds out.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["libp2p"])
    return context


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "it hung up"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
