"""The status document as one screen of text, and as one line. Pure; what is unknown is shown as ``–``."""

from __future__ import annotations

import re
import textwrap
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

from protocols.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNIT = re.compile(r"(?<=\d) (?=\S)|(?<=[a-z2]) (?=\d+ \(\d)")
_PORT = re.compile(r"/tcp/(\d+)")
_PEER = re.compile(r"/p2p/(\w{4})\w+(\w{4})$")
SHOWN_VERDICTS = 5
UNKNOWN = "–"
BAR = 16
LABEL = 10
STOP = "`murmur stop`, nothing sealed is lost"
PAUSE = "`murmur pause --for 1h` frees processor and memory at once"
STOPS = "Ctrl-C stops"
WAITS = ("disk", "no_peers")
"""Reasons for which a round does not go on: they are said in place of its bar."""
NARROWEST = 40
"""Columns below which no screen is made to fit."""


def screen(status: dict[str, Any], width: int | None = None) -> str:
    """Lines without a final newline, of ``width`` columns at most (None: as long as they are).

    Reads only keys of the contract, and misses none of them.
    """
    run, now, model = status["run"], status["round"], status["model"]
    speed, peers = status["speed"], status["peers"]
    if status["state"] == "paused":
        speed = dict.fromkeys(speed)  # that of the last window says nothing about now
    lines = [
        ("state", f"{status['state']} since {_clock(status['since'])}{_reason(status['reason'])}"),
        ("run", f"{_text(run['name'])} · {_text(run['size'])} · cell {_text(run['cell'])} · {_text(run['id'])[:16]}"),
        ("round", f"{_text(now['number'])} · {_phase(now)} · last sealed {_text(now['last_sealed'])}{_finality(now)}"),
        (
            "loss",
            f"held out {_decimal(model['held_out_loss'])} · training {_decimal(model['train_loss'])} nats per byte",
        ),
        (
            "speed",
            f"{_decimal(speed['steps_per_s'], 1)} steps/s · {_amount(speed['tokens_per_s'])} tokens/s"
            f" · {_amount(model['tokens'])} tokens so far",
        ),
        *(("verdict", each) for each in _verdicts(status["verdicts"][-SHOWN_VERDICTS:])),
        ("peers", f"{_company(peers, status['seeds'], status['reach'])}{_reach(status['reach'])}"),
        *(("reach", each) for each in _evidence(status["reach"])),
        ("traffic", f"{_bytes(status['traffic']['sent'])} sent · {_bytes(status['traffic']['received'])} received"),
        ("uses", _uses(status["machine"], status["processes"])),
        ("limits", _limits(status["machine"])),
        ("processes", " · ".join(_process(name, entry) for name, entry in status["processes"].items())),
        *(("seed", _seed(seed)) for seed in status["seeds"]),
        *(("warning", _warning(warning)) for warning in status["warnings"]),
        ("stop", f"{STOP}; {'`murmur resume` trains on' if status['pause'] else PAUSE}"),
        ("peer", f"{status['peer']} · murmur {status['version']}"),
    ]
    if status["pause"]:
        lines.insert(1, ("pause", "the trainer is gone, and its memory is free; seals are followed, others are served"))
    return "\n".join(_row(name, text, width) for name, text in lines)


def _row(name: str, text: str, width: int | None) -> str:
    text = printable(text)
    if width is None:
        return f"{name:<{LABEL}} {text}"
    room = max(NARROWEST, width) - LABEL - 1
    glued = _UNIT.sub("\xa0", text)  # a number stays with what it counts
    lines = [each.replace("\xa0", " ") for each in textwrap.wrap(glued, room, break_on_hyphens=False)] or [""]
    return "\n".join([f"{name:<{LABEL}} {lines[0]}", *(f"{'':<{LABEL}} {each}" for each in lines[1:])])


def _clock(unix: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(unix))


def _company(peers: dict[str, Any], seeds: list[dict[str, Any]], reach: dict[str, Any]) -> str:
    """How many are connected, and how; or why nobody is."""
    if peers["total"]:
        ways = [f"{peers[way]} {way}" for way in ("direct", "punched", "relayed") if peers[way]]
        return f"{peers['total']} connected" + (f" ({', '.join(ways)})" if ways else "")
    if reach["rung"] == "none":
        return "none" + (f": {reach['evidence'][0]}" if reach["evidence"] else "")
    if not seeds:
        return "none connected; `murmur invite` prints a line with which others join"
    answered = sum(seed["state"] == "ok" for seed in seeds)
    return f"none connected; {answered} of {len(seeds)} address{'es' * (len(seeds) > 1)} answered"


def _reach(reach: dict[str, Any]) -> str:
    """Whether others can come here."""
    if reach["rung"] != "unknown":
        return "" if reach["rung"] == "none" else f" · reachable: {reach['rung']}"
    listens = ", ".join(ports(reach["addresses"]))
    return f" · listens on port {listens}, not known whether others reach it" if listens else ""


def _evidence(reach: dict[str, Any]) -> list[str]:
    """Why it is so, in one line; none while nothing is known."""
    return ["; ".join(reach["evidence"])] if reach["evidence"] and reach["rung"] != "unknown" else []


def ports(addresses: Iterable[str]) -> list[str]:
    """TCP ports of these addresses."""
    return sorted({found for address in addresses for found in _PORT.findall(address)})


def _uses(machine: dict[str, Any], processes: dict[str, Any]) -> str:
    sizes = [each["rss"] for each in processes.values() if each["rss"] is not None]
    return (
        f"{_decimal(machine['cpu'], 1)} of {_text(machine['cores'])} cores"
        f" · {_bytes(sum(sizes) if sizes else None)} of memory"
        f" · {_bytes(machine['disk'])} of disk ({_bytes(machine['disk_free'])} free)"
    )


def _limits(machine: dict[str, Any]) -> str:
    return (
        f"{_cores(machine['threads'])} for the trainer, at the lowest priority"
        f" · {_bytes(machine['disk_cap'])} of disk for data · no limit on memory and traffic"
    )


def _cores(count: int | None) -> str:
    return f"{_text(count)} core{'s' * (count != 1)}"


def live_line(status: dict[str, Any], width: int, fetched: float | None = None) -> str:
    """What goes on just now, in at most ``width`` columns: the round with a bar, or why there is none.

    ``fetched``: the share that is here of what is loaded just now.
    """
    state, reason = status["state"], status["reason"]
    ends = [f"peers {status['peers']['total']}" + (" (finishing)" if state == "finishing" else ""), STOPS]
    under_way = status["round"]["phase"] is not None and reason["code"] not in WAITS
    if state in ("training", "finishing") and under_way:
        parts = _round_parts(status, ends)
    elif fetched is not None:
        parts = [f" {bar(fetched)}  {reason['text']}", STOPS]
    else:
        parts = [f" {state}{_reason(reason)}", *ends]
        room = width - 1 - sum(len(each) + 2 for each in ends)  # why nothing goes on may be long
        parts[0] = _cut(parts[0], room if room >= NARROWEST else width)
    line = _cut(parts[0], width)
    for part in parts[1:]:
        if len(line) + 2 + len(part) < width:
            line += f"  {part}"
    return line


def _round_parts(status: dict[str, Any], ends: list[str]) -> list[str]:
    """What is said of the round under way, the most important first."""
    now, loss, speed = status["round"], status["model"]["train_loss"], status["speed"]["tokens_per_s"]
    return [
        f" round {_text(now['number']):>4}  {now['phase']:<8} {bar(now['progress'])}",
        *([f"loss {loss:.2f}"] if loss is not None else ()),
        *ends,
        *([f"{_amount(speed)} tok/s"] if speed is not None else ()),
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def bar(progress: float | None) -> str:
    """``▕████────▏ 50%``; nothing where it is unknown."""
    if progress is None:
        return ""
    done = round(BAR * min(1.0, max(0.0, progress)))
    return f"▕{'█' * done}{'─' * (BAR - done)}▏{progress:4.0%}"


def _connection(peer: dict[str, Any]) -> str:
    return " ".join(each for each in (peer["connection"] or "none", peer["transport"]) if each)


def _milliseconds(seconds: float | None) -> str:
    """0.0123 → ``12 ms``; below 1 ms with a decimal."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds * 1e3:.{int(seconds < 1e-3)}f} ms"


def peers_screen(peers: list[dict[str, Any]], width: int | None = None) -> str:
    """One row for each peer; on a narrow screen the ids are shortened, software and addresses left out."""
    wide = width is None or width >= 110
    head = ("peer", "connection", "rtt", "member", "weight", "sealed", "announced")
    rows = [(*head, *(("software", "address") if wide else ()))]
    for each in peers:
        member = each["member"] or {}
        missed = f", missed {member['missed']}" if member.get("missed") else ""
        rows.append(
            (
                each["id"] if width is None else f"{each['id'][:4]}…{each['id'][-6:]}",
                "this one" if each["own"] else _connection(each),
                "" if each["own"] else _milliseconds(each.get("rtt_s")),
                f"{member['state']}{missed}" if member else "no",
                f"{member['weight']:.2f}" if member else UNKNOWN,
                _text(member.get("sealed")),
                _text(each["head"]),
                *((_text(each["software"]), _address(each["addresses"], whole=width is None)) if wide else ()),
            )
        )
    cells = [[printable(cell) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(f"{cell:<{size}}" for cell, size in zip(row, sizes, strict=True)).rstrip() for row in cells]
    connected, members = (sum(each[key] is not None for each in peers) for key in ("connection", "member"))
    lines.append(f"{connected} connected, {members} member{'s' * (members != 1)}")
    if not connected:
        hint = "none yet: `murmur status` says why; `murmur invite` prints a line for others"
        lines.extend([hint] if width is None else textwrap.wrap(hint, max(NARROWEST, width)))
    return "\n".join(line if width is None else line[: max(NARROWEST, width)] for line in lines)


def _reason(reason: dict[str, Any]) -> str:
    text = reason["text"] or (reason["code"] if reason["code"] != "none" else "")
    return f": {text}" if text else ""


def _phase(now: dict[str, Any]) -> str:
    if now["phase"] is None:
        return UNKNOWN
    return str(now["phase"]) + ("" if now["progress"] is None else f" {now['progress']:.0%}")


def _finality(now: dict[str, Any]) -> str:
    words = [word for word, holds in ((f"{now['void']} void", now["void"]), ("final", now["final"])) if holds]
    return f" ({', '.join(words)})" if words else ""


def _verdicts(verdicts: list[dict[str, Any]]) -> list[str]:
    """A line each; rounds one after the other with the same verdict share one."""
    lines = []
    for (text, _), group in groupby(enumerate(verdicts), lambda each: (_verdict(each[1]), each[1]["round"] - each[0])):
        rounds = [verdict["round"] for _, verdict in group]
        name = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
        lines.append(f"{name}: {text}")
    return lines


def _verdict(verdict: dict[str, Any]) -> str:
    weight = "" if verdict["weight"] is None else f", weight {verdict['weight']:.3f}"
    return f"{verdict['verdict']}{weight}" + (f", {verdict['text']}" if verdict["text"] else "")


def _address(addresses: list[str], *, whole: bool) -> str:
    """The first; with a shortened id unless ``whole``."""
    if not addresses:
        return UNKNOWN
    return addresses[0] if whole else _PEER.sub(r" (\1…\2)", addresses[0])


def _seed(seed: dict[str, Any]) -> str:
    again = "" if seed["retry_s"] is None else f", again in {seed['retry_s']:.0f} s"
    return (
        f"{_address([seed['address']], whole=False)}: {seed['state']}"
        + (f", {seed['error']}" if seed["error"] else "")
        + again
    )


def _warning(warning: dict[str, Any]) -> str:
    return str(warning["text"]) + (f" – {warning['remedy']}" if warning["remedy"] else "")


def _process(name: str, process: dict[str, Any]) -> str:
    restarts = process.get("restarts")
    if process["pid"] is None:
        return f"{name} none" + (f" (restarted {restarts}×)" if restarts else "")
    again = f", restarted {restarts}×" if restarts else ""
    return f"{name} {_text(process['pid'])} ({_bytes(process['rss'])}{again})"


def _text(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _decimal(value: float | None, digits: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _amount(value: float | None) -> str:
    """1234567 → ``1.2 M``."""
    if value is None:
        return UNKNOWN
    for unit in ("", " k", " M", " G"):
        if abs(value) < 1000:
            return f"{value:.0f}" if unit == "" else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} T"


def _bytes(value: float | None) -> str:
    """1234567 → ``1.2 MB``."""
    amount = _amount(value)
    return amount if value is None else f"{amount}{'' if amount[-1].isalpha() else ' '}B"
