"""The doctor on what only a running daemon knows: who reaches this peer, by which way, and what it warns of. Pure."""

from __future__ import annotations

from typing import Any

from .doctor_report import Outcome, failed, passed, skipped, warned

NO_DAEMON = "only a running daemon knows: `murmur up`, then again"
CIRCUIT = "/p2p-circuit"
_WAYS = {
    "public": "yes, directly: this machine has a public address",
    "mapped": "yes, directly: the router forwards a port",
    "ipv6": "yes, directly over IPv6",
    "punched": "yes, through a hole punched in the router: peers dial each other at the same moment",
}


def inbound(status: dict[str, Any] | None, *, alone: bool) -> Outcome:
    """Whether others can come here, and how it is known."""
    if alone:
        return skipped("--alone takes nobody")
    if status is None:
        return skipped(NO_DAEMON)
    reach = status["reach"]
    why = "; ".join(reach["evidence"])
    because = f" ({why})" if why else ""
    if (way := _WAYS.get(reach["rung"])) is not None:
        return passed(way + because)
    if reach["rung"] == "relayed":
        return warned(
            f"through a relay only, which is slower{because}",
            "switch UPnP on in the router, or forward the port of `--p2p-port`, TCP and UDP, to this machine",
        )
    if reach["rung"] == "none" and why.startswith("--alone"):
        return skipped(why)
    if reach["rung"] == "none":
        return failed(
            f"no{because}",
            "join by an address of a machine that everybody reaches, or run `murmur lighthouse` on one",
        )
    return skipped(f"the daemon does not know it{because}")


def peers(status: dict[str, Any] | None, *, alone: bool) -> Outcome:
    """Who is connected, by kind of connection."""
    if alone:
        return skipped("--alone never looks for peers")
    if status is None:
        return skipped(NO_DAEMON)
    now = status["peers"]
    if now["total"]:
        ways = [f"{now[way]} {way}" for way in ("direct", "punched", "relayed") if now[way]]
        return passed(f"{now['total']} connected" + (f": {', '.join(ways)}" if ways else ""))
    if not status["seeds"]:
        return skipped("none, and no address to find one by: `murmur invite` prints a line for others")
    return warned("none connected", "see what is said of each address; with one that answers peers come within seconds")


def punch(status: dict[str, Any] | None, *, alone: bool) -> Outcome:
    """Whether holes are punched: told by the connections that there are."""
    if alone:
        return skipped("--alone never looks for peers")
    if status is None:
        return skipped(NO_DAEMON)
    now = status["peers"]
    if now["punched"]:
        return passed(f"works with {now['punched']} peer{'s' * (now['punched'] > 1)}")
    if now["relayed"]:
        return warned(
            f"{now['relayed']} peer{'s' * (now['relayed'] > 1)} reached through a relay, none through a punched hole",
            "UPnP or a port forwarding on either side makes it needless; `murmur peers` shows who is relayed",
        )
    return skipped("no connection has needed it" if now["total"] else "no peer is connected to try it with")


def warnings(status: dict[str, Any] | None) -> dict[str, Outcome]:
    """What the daemon itself warns of, by code; its clock has a check of its own."""
    found = status["warnings"] if status is not None else ()
    return {
        each["code"]: warned(each["text"], each["remedy"] or "`murmur log` shows more")
        for each in found
        if each["code"] != "clock"
    }
