"""What the relay's visitors may ask: reservations and circuits (circuit relay v2), identify and ping.

https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md. py-libp2p's own handler is not used: it lets anybody
reserve in another peer's name, counts nothing by address, dials strangers, and closes one direction of a circuit only.
The relay is never reached over another one: it accepts sockets alone and does not speak the stop protocol.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import base58
import trio
from google.protobuf.message import DecodeError
from libp2p.peer.envelope import Envelope, make_unsigned
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, Reservation, Status, StopMessage, Voucher

from .relay_limits import Admission, End, Refusal
from .relay_select import prefixed, read_message, select, write_message
from .relay_sharing import Sharing
from .relay_stream import CHUNK, Reset, Stream

if TYPE_CHECKING:
    from libp2p.crypto.keys import PrivateKey
    from libp2p.peer.id import ID

    from .relay_mux import Mux

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"

ANSWER_S = 10.0
"""In which the far end of a new circuit must have answered."""
STALLED_S = 60.0
"""A circuit's end that takes nothing for so long, though there is something for it, is cut off."""
MESSAGE_BYTES = 4096
PEER_BYTES = 64

_STATUS = {
    Refusal.NOT_ALLOWED: Status.PERMISSION_DENIED,
    Refusal.RELAYED: Status.PERMISSION_DENIED,
    Refusal.NO_RESERVATION: Status.NO_RESERVATION,
}
_VOUCHER_DOMAIN, _VOUCHER_TYPE = "libp2p-relay-rsvp", b"\x03\x02"


@dataclass(slots=True, eq=False)
class Visitor:
    """One connection: who it is, and where it reached us."""

    peer: ID
    end: End
    mux: Mux
    local: bytes
    """The multiaddr, without peer id, at which it reached us."""
    remote: bytes
    """Its own, as we see it."""


class Circuits:
    """The hop protocol of one relay."""

    def __init__(self, key: PrivateKey, own: ID, admission: Admission, announced: list[bytes]) -> None:
        """``announced``: multiaddrs with our peer id; none: each visitor is told the address that it reached."""
        self.bytes = 0
        self.ended: Counter[str] = Counter()
        self._key, self._own, self._announced = key, own, announced
        self._admission = admission
        limits = admission.limits
        self._turns = Turns(Sharing(limits.total_rate, limits.circuit_rate))
        self._visitors: dict[str, list[Visitor]] = {}

    async def run(self) -> None:
        """Hands out turns until cancelled."""
        await self._turns.run()

    def enter(self, visitor: Visitor) -> None:
        """A new connection."""
        self._visitors.setdefault(visitor.end.peer, []).append(visitor)

    def leave(self, visitor: Visitor) -> None:
        """It is over; with a peer's last one its reservation goes."""
        left = [each for each in self._visitors.get(visitor.end.peer, []) if each is not visitor]
        if left:
            self._visitors[visitor.end.peer] = left
        else:
            self._visitors.pop(visitor.end.peer, None)
            self._admission.leave(visitor.end.peer)

    async def serve(self, visitor: Visitor, stream: Stream) -> None:
        """One hop stream; raises Reset."""
        request = HopMessage(type=HopMessage.STATUS)
        with trio.move_on_after(ANSWER_S), contextlib.suppress(DecodeError):
            request = HopMessage.FromString(await read_message(stream, MESSAGE_BYTES))
        if request.type == HopMessage.RESERVE:
            await self._reserve(visitor, stream)
        elif request.type == HopMessage.CONNECT:
            await self._connect(visitor, stream, request.peer.id)
        else:
            await _refuse(stream, Status.MALFORMED_MESSAGE)

    async def _reserve(self, visitor: Visitor, stream: Stream) -> None:
        """For the peer of this connection, whomever the message names."""
        granted = self._admission.reserve(visitor.end, trio.current_time())
        if isinstance(granted, Refusal):
            await _refuse(stream, _STATUS.get(granted, Status.RESERVATION_REFUSED))
            return
        expire = int(time.time() + granted - trio.current_time())
        own = b"\xa5\x03" + prefixed(self._own.to_bytes())  # /p2p/…
        reservation = Reservation(
            expire=expire,
            addrs=self._announced or [visitor.local + own],
            voucher=self._voucher(visitor.peer, expire),
        )
        answer = HopMessage(type=HopMessage.STATUS, status=Status.OK, reservation=reservation, limit=self._limit())
        await write_message(stream, answer.SerializeToString())
        await stream.finish()

    async def _connect(self, visitor: Visitor, stream: Stream, wanted: bytes) -> None:
        target = self._find(wanted)
        end = target.end if target is not None else End("", "")
        circuit = self._admission.open(visitor.end, end, trio.current_time())
        if isinstance(circuit, Refusal) or target is None:
            assert isinstance(circuit, Refusal)
            await _refuse(stream, _STATUS.get(circuit, Status.RESOURCE_LIMIT_EXCEEDED))
            return
        try:
            far = await self._stop(visitor, target)
            if far is None:
                await _refuse(stream, Status.CONNECTION_FAILED)
                return
            try:
                answer = HopMessage(type=HopMessage.STATUS, status=Status.OK, limit=self._limit())
                await write_message(stream, answer.SerializeToString())
                await self._relay(circuit, stream, far)
            finally:
                far.reset()
                stream.reset()
        finally:
            self._admission.close(circuit)

    def _find(self, wanted: bytes) -> Visitor | None:
        """The newest connection of a peer, by the bytes of its id."""
        if len(wanted) > PEER_BYTES:
            return None
        them = self._visitors.get(base58.b58encode(wanted).decode())
        return them[-1] if them else None

    async def _stop(self, source: Visitor, target: Visitor) -> Stream | None:
        """A stream to the far end, which has agreed; None when it has not, or not in time."""
        far = None
        with trio.move_on_after(ANSWER_S):
            try:
                far = await target.mux.open()
                await select(far, STOP)
                request = StopMessage(type=StopMessage.CONNECT, limit=self._limit())
                request.peer.id = source.peer.to_bytes()
                await write_message(far, request.SerializeToString())
                answer = StopMessage.FromString(await read_message(far, MESSAGE_BYTES))
                if answer.status == Status.OK:
                    return far
            except (Reset, DecodeError):
                pass
        if far is not None:
            far.reset()
        return None

    async def _relay(self, circuit: int, near: Stream, far: Stream) -> None:
        """Both directions, until both have ended, one is cut, or a limit is reached."""
        limits = self._admission.limits
        self._turns.sharing.enter(circuit)
        for stream in (near, far):
            stream.become_circuit(self._admission.window)
        why = "cut"  # with the whole connection
        try:
            with trio.move_on_after(limits.circuit_s if limits.circuit_s is not None else float("inf")) as time_left:
                whys: list[str] = []
                async with trio.open_nursery() as nursery:
                    for source, sink in ((near, far), (far, near)):
                        nursery.start_soon(self._pump, circuit, source, sink, nursery.cancel_scope, whys)
                why = whys[0] if whys else "closed"
            if time_left.cancelled_caught:
                why = "duration"
        finally:
            self._turns.sharing.leave(circuit)
            self.ended[why] += 1

    async def _pump(self, circuit: int, source: Stream, sink: Stream, scope: trio.CancelScope, whys: list[str]) -> None:
        """One direction; the end of what comes is passed on, the other direction goes on."""
        left = self._admission.limits.circuit_bytes
        why = "cut"
        try:
            while data := await source.read(CHUNK):
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        why = "bytes"
                        break
                await self._turns.take(circuit, len(data))
                with trio.move_on_after(STALLED_S) as stalled:
                    await sink.write(data)
                if stalled.cancelled_caught:
                    why = "stalled"
                    break
                self.bytes += len(data)
            else:
                await sink.finish()
                return
        except Reset:
            pass
        whys.append(why)
        scope.cancel()

    def _limit(self) -> Limit | None:
        limits = self._admission.limits
        if limits.circuit_s is None and limits.circuit_bytes is None:
            return None
        return Limit(duration=int(limits.circuit_s or 0), data=limits.circuit_bytes or 0)

    def _voucher(self, peer: ID, expire: int) -> bytes:
        payload = Voucher(relay=self._own.to_bytes(), peer=peer.to_bytes(), expiration=expire).SerializeToString()
        signature = self._key.sign(make_unsigned(_VOUCHER_DOMAIN, _VOUCHER_TYPE, payload))
        return Envelope(self._key.get_public_key(), _VOUCHER_TYPE, payload, signature).marshal_envelope()


class Turns:
    """Lets each circuit wait for its turn."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self._events: dict[int, trio.Event] = {}
        self._asked = trio.Event()

    async def take(self, circuit: int, size: int) -> None:
        """Returns when the circuit may send so many bytes."""
        ticket = self.sharing.ask(circuit, size)
        event = self._events[ticket] = trio.Event()
        self._grant()
        if event.is_set():
            return
        self._asked.set()
        try:
            await event.wait()
        finally:
            self._events.pop(ticket, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._grant()
            self._asked = trio.Event()
            wait = self.sharing.wait(trio.current_time())
            with trio.move_on_after(float("inf") if wait is None else wait):
                await self._asked.wait()

    def _grant(self) -> None:
        for ticket in self.sharing.granted(trio.current_time()):
            event = self._events.pop(ticket, None)
            if event is not None:
                event.set()


async def _refuse(stream: Stream, status: Status.ValueType) -> None:
    await write_message(stream, HopMessage(type=HopMessage.STATUS, status=status).SerializeToString())
    await stream.finish()
