"""A py-libp2p peer as a program: one line of JSON with what to do, one with what came of it, until its input ends.

``connect`` to an address, ``identify``, ``ping``, ``reserve``, ``dial`` another peer through the relay, ``send`` to it;
as a target it takes every circuit and echoes it, or counts it. Circuits carry bare bytes, so the relay alone is tried.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import libp2p
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key
from libp2p.host.ping import PingService
from libp2p.identity.identify.identify import parse_identify_response
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.envelope import unmarshal_envelope
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage, Voucher
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.security.tls.transport import PROTOCOL_ID as TLS
from libp2p.security.tls.transport import TLSTransport
from multiaddr import Multiaddr

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
BARE = "/bench/1"
PIECE = 65519 - 12


def started(seed: int, security: str) -> Any:
    """A host that offers this security only."""
    keys = create_new_key_pair(seed.to_bytes(32, "big"))
    noise = Noise(keys, noise_privkey=new_noise_key().private_key)
    return libp2p.new_host(key_pair=keys, sec_opt={NOISE: noise} if security == NOISE else {TLS: TLSTransport(keys)})


class Peer:
    """One host, and the circuits that end or begin at it."""

    def __init__(self, seed: int, security: str) -> None:
        self.host = started(seed, security)
        self.host.set_stream_handler(STOP, self.accept)
        self.host.set_stream_handler(BARE, self.take)
        self.relay: Any = None
        self.echo = True
        self.received: dict[str, int] = {}
        self.news = trio.Event()
        self.dialled: dict[int, Any] = {}

    async def accept(self, stream: Any) -> None:
        """A circuit that somebody opened to us."""
        message = await read_delimited_msg(stream, StopMessage)
        await write_delimited_msg(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
        await self.take(stream, str(ID(message.peer.id)) + f"#{len(self.received)}")

    async def take(self, stream: Any, name: str = "direct") -> None:
        """Echo or count what comes."""
        self.received[name] = 0
        try:
            while data := await stream.read(1 << 20):
                self.received[name] += len(data)
                self.news.set()
                if self.echo:
                    await stream.write(data)
        except StreamEOF:
            await stream.close_write()
        except Exception:  # cut, however py-libp2p puts it
            return

    async def do(self, what: str, given: dict[str, Any]) -> dict[str, Any]:
        """One request."""
        return await getattr(self, f"do_{what}")(**given)  # type: ignore[no-any-return]

    async def do_connect(self, address: str) -> dict[str, Any]:
        info = info_from_p2p_addr(Multiaddr(address))
        await self.host.connect(info)
        self.relay = info.peer_id
        return {}

    async def do_identify(self) -> dict[str, Any]:
        stream = await self.host.new_stream(self.relay, ["/ipfs/id/1.0.0"])
        data = b""
        try:
            while piece := await stream.read(4096):
                data += piece
        except Exception:  # its end
            pass
        answer = parse_identify_response(data)
        return {
            "agent": answer.agent_version,
            "protocols": list(answer.protocols),
            "observed": str(Multiaddr(answer.observed_addr)),
            "listen": [str(Multiaddr(each)) for each in answer.listen_addrs],
        }

    async def do_ping(self) -> dict[str, Any]:
        return {"us": (await PingService(self.host).ping(self.relay, 2))[-1]}

    async def do_protocol(self, name: str) -> dict[str, Any]:
        """Whether the relay speaks it."""
        try:
            await self.host.new_stream(self.relay, [name])
        except Exception as error:
            return {"ok": False, "error": repr(error)}
        return {"ok": True}

    async def do_reserve(self, name: str = "") -> dict[str, Any]:
        """``name``: in whose name, where it is not our own."""
        stream = await self.host.new_stream(self.relay, [HOP])
        request = HopMessage(type=HopMessage.RESERVE)
        if name:
            request.peer.id = ID.from_base58(name).to_bytes()
        await write_delimited_msg(stream, request)
        answer = await read_delimited_msg(stream, HopMessage)
        result: dict[str, Any] = {"status": answer.status}
        if answer.status == 100:
            envelope = unmarshal_envelope(answer.reservation.voucher)
            envelope.validate("libp2p-relay-rsvp")
            voucher = Voucher.FromString(envelope.raw_payload)
            result |= {
                "expire": answer.reservation.expire,
                "addrs": [str(Multiaddr(each)) for each in answer.reservation.addrs],
                "voucher": [str(ID(voucher.relay)), str(ID(voucher.peer)), str(ID.from_pubkey(envelope.public_key))],
                "limit": [answer.limit.duration, answer.limit.data],
            }
        return result

    async def do_dial(self, peer: str, number: int = 0) -> dict[str, Any]:
        stream = await self.host.new_stream(self.relay, [HOP])
        request = HopMessage(type=HopMessage.CONNECT)
        request.peer.id = ID.from_base58(peer).to_bytes()
        await write_delimited_msg(stream, request)
        answer = await read_delimited_msg(stream, HopMessage)
        self.dialled[number] = stream
        return {"status": answer.status}

    async def do_direct(self, number: int = 0) -> dict[str, Any]:
        """A bare stream to the peer that we are connected to."""
        self.dialled[number] = await self.host.new_stream(self.relay, [BARE])
        return {}

    async def do_send(self, size: int, number: int = 0, echo: bool = True) -> dict[str, Any]:
        """Send so many bytes; with ``echo`` wait for all of them, which must be the same."""
        stream, blob = self.dialled[number], os.urandom(1 << 20) * (size >> 20)
        began, got = time.monotonic(), bytearray()

        async def send() -> None:
            for start in range(0, len(blob), PIECE):
                await stream.write(blob[start : start + PIECE])

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while echo and len(got) < len(blob):
                    got += await stream.read(1 << 20)
        except Exception as error:
            return {"ok": False, "got": len(got), "s": time.monotonic() - began, "error": repr(error)}
        return {"ok": not echo or got == blob, "got": len(got), "s": time.monotonic() - began}

    async def do_pump(self, numbers: list[int], seconds: float) -> dict[str, Any]:
        """Send as much as goes on all of these for so long."""
        piece = os.urandom(PIECE)

        async def send(stream: Any) -> None:
            while True:
                await stream.write(piece)

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(send, self.dialled[number])
        return {}

    async def do_read(self, number: int = 0) -> dict[str, Any]:
        """Wait for the end of a circuit."""
        began = time.monotonic()
        try:
            data = await self.dialled[number].read(1)
        except Exception as error:
            return {"error": type(error).__name__, "s": time.monotonic() - began}
        return {"error": "", "data": data.hex(), "s": time.monotonic() - began}

    async def do_close(self, number: int = 0, half: bool = True) -> dict[str, Any]:
        await (self.dialled[number].close_write() if half else self.dialled[number].reset())
        return {}

    async def do_received(self) -> dict[str, Any]:
        return {"received": self.received}

    async def do_arrived(self, more: int) -> dict[str, Any]:
        """When so many bytes more have come."""
        wanted = sum(self.received.values()) + more
        while sum(self.received.values()) < wanted:
            self.news = trio.Event()
            await self.news.wait()
        return {}

    async def do_counting(self) -> dict[str, Any]:
        """Count from now on, and do not echo."""
        self.echo = False
        return {}


async def main(seed: int, security: str) -> None:
    """Serve requests."""
    peer = Peer(seed, security)

    async def answer(line: bytes) -> None:
        given = json.loads(line)
        ask = given.pop("ask")
        try:
            with trio.fail_after(50):
                result = await peer.do(given.pop("do"), given)
        except Exception as error:
            result = {"failed": repr(error)}
        sys.stdout.write(json.dumps({"ask": ask, **result}) + "\n")
        sys.stdout.flush()

    async with peer.host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]), trio.open_nursery() as nursery:
        addresses = [str(each) for each in peer.host.get_addrs()]
        sys.stdout.write(json.dumps({"peer": str(peer.host.get_id()), "addresses": addresses}) + "\n")
        sys.stdout.flush()
        buffer = b""
        async with trio.lowlevel.FdStream(os.dup(0)) as source:
            while data := await source.receive_some(1 << 16):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    nursery.start_soon(answer, line)
        os._exit(0)  # py-libp2p takes its time


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    trio.run(main, int(sys.argv[1]), sys.argv[2])
