"""The doctor on how this machine looks from outside: NAT, who gets in, relays. Judged from ``doctor_outside``'s answer.

Without an answer a check says why there is none, and what a running daemon knows.
"""

from __future__ import annotations

import ipaddress
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dht.reachability import is_outside
from protocols.reach import PROVEN, WORDS

from .doctor_checks_daemon import CIRCUIT
from .doctor_checks_machine import output
from .doctor_interfaces import Own, of_kind
from .doctor_report import Outcome, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Sequence

WITHIN_S = 60.0
"""For the question in all, most of it to load what asks on a busy machine; the answers take a few seconds."""
OPEN_UP = (
    "switch UPnP on in the router, or forward the port of `--p2p-port`, TCP and UDP, to this machine; until then a"
    " relay or a punched hole does"
)
REFUSED = "refused us"
"""In the words of whoever talks to no stranger (``dht.links``)."""
SHOWN = 100
"""Characters of a stranger's words."""
NOT_MEASURED = "what they carry a second is not measured, for that would load them"
_ROOT = str(Path(__file__).resolve().parents[1])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from peer.doctor_outside import main; main()"


@dataclass(frozen=True, slots=True)
class Observer:
    """What one peer said: ``seen`` where this end is seen, ``found`` what it met when it dialled back."""

    peer: str
    seen: str
    found: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Relay:
    """How far away a relay is, seconds: a TCP connection, and a ping; None where that failed with ``error``."""

    peer: str
    connect_s: float | None = None
    rtt_s: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outside:
    """What was found; ``why`` nobody was asked, empty where somebody was. ``port``: of the end that was seen."""

    port: int = 0
    observers: tuple[Observer, ...] = ()
    relays: tuple[Relay, ...] = ()
    why: str = ""

    def ends(self, transport: str = "") -> list[Observer]:
        """Those out in the world who see this end, over ``udp`` or ``tcp``."""
        return [each for each in self.observers if is_outside(each.seen) and f"/{transport}" in each.seen]


async def ask(run: bytes, port: int, addresses: Sequence[str], relays: Sequence[str]) -> Outside:
    """Ask in a process of its own; raises OSError and TimeoutError, and ValueError where it ends with a complaint."""
    with tempfile.TemporaryDirectory(prefix="murmur-doctor-") as home:
        wish = {"home": home, "run": run.hex(), "port": port, "addresses": list(addresses), "relays": list(relays)}
        command = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, _ROOT, json.dumps(wish)]
        code, said = await output(command, WITHIN_S)
    lines = said.strip().splitlines() or ["nothing"]
    if code:
        raise ValueError(f"it ended with {code}, saying: {lines[-1][:300]}")
    answer = json.loads(lines[-1])
    return Outside(
        answer["port"],
        tuple(Observer(**each) for each in answer["observers"]),
        tuple(Relay(**each) for each in answer["relays"]),
    )


def relays_of(status: dict[str, Any] | None) -> list[str]:
    """Addresses of the relays at which a daemon holds places."""
    places = status["reach"]["addresses"] if status is not None else ()
    return list(dict.fromkeys(each.partition(CIRCUIT)[0] for each in places if CIRCUIT in each))


def nat(own: Sequence[Own], outside: Outside, status: dict[str, Any] | None) -> Outcome:
    """What lies between this machine and the internet: told by the ports that others see."""
    if public := of_kind(own, "public", version=4):
        return passed(f"none: {public[0]} is public")
    if not of_kind(own, "private", "shared", "bridge", version=4):
        return skipped("no IPv4 here")
    ends = [each.seen for each in outside.ends("udp/")]
    if not ends:
        return _unseen(outside, status)
    ports = sorted({int(each.split("/")[4]) for each in ends})
    places = ", ".join(dict.fromkeys(_place(each) for each in ends))
    if len(ports) > 1:
        return warned(
            f"symmetric: it gives another port for each peer ({outside.port} is seen as {places}), so no hole can be"
            " punched through it",
            OPEN_UP.replace(" or a punched hole", ""),
        )
    kept = ports == [outside.port]
    if len(ends) > 1:
        how = "keeps the port" if kept else "gives one port for all peers"
        return passed(f"one that {how} ({len(ends)} peers see this machine at {places}): holes can be punched")
    if kept:
        return passed(f"one that keeps the port (a peer sees this machine at {places}; one observer only)")
    return warned(
        f"one that changes the port: {outside.port} is seen as {places}, by one observer only; a second one would tell"
        " whether it gives the same to all, or is symmetric and lets no hole be punched",
        "join by a second lighthouse too, to know; UPnP or a port forwarding in the router makes it needless",
    )


def _unseen(outside: Outside, status: dict[str, Any] | None) -> Outcome:
    there = "there is one, for all IPv4 addresses here are private"
    told = [each for each in (status["reach"]["evidence"] if status else ()) if "NAT" in each or "/udp/" in each]
    if any("symmetric" in each for each in told):
        return warned(f"{told[0]} (says the daemon)", OPEN_UP)
    if told:
        return passed(f"one through which the daemon is {told[0]}")
    if ends := outside.ends("tcp/"):
        place = ipaddress.ip_address(ends[0].seen.split("/")[2])
        return skipped(f"there is one, at {place}; its kind shows over UDP only, and nobody answered over it")
    return skipped(f"{there}; of which kind, only peers outside could tell, and {_why(outside)}")


def inbound(own: Sequence[Own], outside: Outside) -> Outcome:
    """Whether others get in, tried without a daemon: on the port that is chosen, or one that was just opened."""
    ends = outside.ends()
    if not ends:
        return skipped(f"nobody outside has tried, for {_why(outside)}")
    got = [each for each in ends if each.found == PROVEN]
    if got:
        who = f"…{got[0].peer[-6:]} reached this machine at {_host(got[0].seen)}, TCP port {outside.port}"
        return passed(f"yes, directly: {who}")
    word = WORDS.get(ends[0].found, "not tried")
    behind = not of_kind(own, "public", version=4)
    return warned(
        f"not directly: …{ends[0].peer[-6:]} tried {_host(ends[0].seen)}, TCP port {outside.port}: {word}",
        OPEN_UP if behind else "let this port in through the firewall here (`--p2p-port` chooses it), TCP and UDP",
    )


def relays(outside: Outside, status: dict[str, Any] | None) -> Outcome:
    """Whether relays answer, how far away they are, and which hold a place for this peer."""
    held = {each.rpartition("/p2p/")[2] for each in relays_of(status)}
    lines = [_relay(each, is_held=each.peer in held) for each in outside.relays]
    if any(each.rtt_s is not None for each in outside.relays):
        return passed("; ".join([*lines, NOT_MEASURED]))
    if lines:
        return warned("; ".join(lines), "ask whoever runs it; with a second lighthouse (`--join`) one may fail")
    if held:
        return passed(f"{len(held)} hold{'s' * (len(held) == 1)} a place for this peer; {_why(outside)}")
    if status is not None and status["reach"]["rung"] in ("public", "mapped", "ipv6"):
        return skipped("not needed: others come here directly")
    if not any(each.seen for each in outside.observers):
        return skipped(f"none could be looked for: {_why(outside)}")
    return skipped("none is known to those who were asked; `murmur lighthouse` on a reachable machine is one")


def _relay(relay: Relay, *, is_held: bool) -> str:
    place = ", holds a place for this peer" if is_held else ""
    if relay.rtt_s is None:
        return f"…{relay.peer[-6:]} does not answer: {relay.error}{place}"
    connect = f", connects in {_ms(relay.connect_s)}" if relay.connect_s is not None else ""
    return f"…{relay.peer[-6:]}: {_ms(relay.rtt_s)} there and back{connect}{place}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{int(seconds < 1e-3)}f} ms"


def _why(outside: Outside) -> str:
    if outside.why:
        return outside.why
    if inside := [each for each in outside.observers if each.seen]:
        return f"who answered is inside this network too (sees {_host(inside[0].seen)})"
    refused = [each for each in outside.observers if REFUSED in each.error]
    if refused:
        return f"…{refused[0].peer[-6:]} {refused[0].error[:SHOWN]}"
    if outside.observers:
        return f"nobody answered at {len(outside.observers)} address{'es' * (len(outside.observers) > 1)}"
    return "there is nobody to ask"


def _host(end: str) -> str:
    return end.split("/")[2]


def _place(end: str) -> str:
    """``11.22.33.4:4001`` of a multiaddr."""
    parts = end.split("/")
    return f"[{parts[2]}]:{parts[4]}" if parts[1] == "ip6" else f"{parts[2]}:{parts[4]}"
