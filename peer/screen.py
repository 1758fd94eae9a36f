"""The status document as one screen of text, and as one line. Pure; what is unknown is shown as ``–``."""

from __future__ import annotations

import textwrap
import time
from typing import Any

SHOWN_VERDICTS = 5
UNKNOWN = "–"
BAR = 16
LABEL = 10
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
        ("state", status["state"] + _reason(status["reason"])),
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
        (
            "peers",
            f"{peers['total']} connected ({peers['direct']} direct, {peers['punched']} punched, "
            f"{peers['relayed']} relayed) · reachable: {status['reach']['rung']}",
        ),
        ("traffic", f"{_amount(status['traffic']['sent'])}B sent · {_amount(status['traffic']['received'])}B received"),
        ("processes", " · ".join(_process(name, entry) for name, entry in status["processes"].items())),
        *(("verdict", _verdict(verdict)) for verdict in status["verdicts"][-SHOWN_VERDICTS:]),
        *(("seed", _seed(seed)) for seed in status["seeds"]),
        *(("warning", _warning(warning)) for warning in status["warnings"]),
        ("peer", f"{status['peer']} · murmur {status['version']}"),
    ]
    if status["pause"]:
        lines.insert(1, ("pause", _pause(status["pause"])))
    return "\n".join(_row(name, text, width) for name, text in lines)


def _row(name: str, text: str, width: int | None) -> str:
    if width is None:
        return f"{name:<{LABEL}} {text}"
    room = max(NARROWEST, width) - LABEL - 1
    first, *rest = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return "\n".join([f"{name:<{LABEL}} {first}", *(f"{'':<{LABEL}} {each}" for each in rest)])


def _pause(pause: dict[str, Any]) -> str:
    since = time.strftime("%a %H:%M", time.localtime(pause["since"]))
    until = time.strftime("%a %H:%M", time.localtime(pause["until"])) if pause["until"] else "`murmur resume`"
    return f"since {since}, until {until}; the trainer is ended, seals are followed, others are served"


def live_line(status: dict[str, Any], width: int) -> str:
    """What goes on just now, in at most ``width`` columns: the round with a bar, or why there is none."""
    now, model, peers = status["round"], status["model"], status["peers"]
    state, reason = status["state"], status["reason"]["text"]
    if state in ("training", "finishing") and now["phase"] is not None:
        parts = [f" round {_text(now['number']):>4}  {now['phase']:<8} {bar(now['progress'])}"]
        if model["train_loss"] is not None:
            parts.append(f"loss {model['train_loss']:.2f}")
        if status["speed"]["tokens_per_s"] is not None:
            parts.append(f"{_amount(status['speed']['tokens_per_s'])} tok/s")
        parts.append(f"peers {peers['total']}" + (" (finishing)" if state == "finishing" else ""))
    else:
        parts = [f" {state}{': ' + reason if reason else ''}", f"peers {peers['total']}"]
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 3 + len(part) < width:
            line += f"   {part}"
    return line[:width]


def bar(progress: float | None) -> str:
    """``▕████────▏ 50%``; nothing where it is unknown."""
    if progress is None:
        return ""
    done = round(BAR * min(1.0, max(0.0, progress)))
    return f"▕{'█' * done}{'─' * (BAR - done)}▏{progress:4.0%}"


def peers_screen(peers: list[dict[str, Any]], width: int | None = None) -> str:
    """One row for each peer; on a narrow screen the ids are shortened and addresses left out."""
    wide = width is None or width >= 110
    rows = [("peer", "connection", "member", "weight", "sealed", "round", "software", "address" if wide else "")]
    for each in peers:
        member = each["member"] or {}
        missed = f", missed {member['missed']}" if member.get("missed") else ""
        rows.append(
            (
                each["id"] if width is None else f"{each['id'][:4]}…{each['id'][-6:]}",
                "this one" if each["own"] else each["connection"] or "none",
                f"{member['state']}{missed}" if member else "no",
                f"{member['weight']:.2f}" if member else UNKNOWN,
                _text(member.get("sealed")),
                _text(each["head"]),
                _text(each["software"]),
                _text(each["addresses"][0] if each["addresses"] else None) if wide else "",
            )
        )
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{size}}" for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    connected = sum(each["connection"] is not None for each in peers)
    lines.append(f"{connected} connected, {sum(each['member'] is not None for each in peers)} members")
    return "\n".join(line if width is None else line[: max(NARROWEST, width)] for line in lines)


def _reason(reason: dict[str, Any]) -> str:
    text = reason["text"] or (reason["code"] if reason["code"] != "none" else "")
    return f" ({text})" if text else ""


def _phase(now: dict[str, Any]) -> str:
    if now["phase"] is None:
        return UNKNOWN
    return str(now["phase"]) + ("" if now["progress"] is None else f" {now['progress']:.0%}")


def _finality(now: dict[str, Any]) -> str:
    words = [word for word, holds in ((f"{now['void']} void", now["void"]), ("final", now["final"])) if holds]
    return f" ({', '.join(words)})" if words else ""


def _verdict(verdict: dict[str, Any]) -> str:
    weight = "" if verdict["weight"] is None else f", weight {verdict['weight']:.3f}"
    return f"round {verdict['round']}: {verdict['verdict']}{weight}" + (
        f", {verdict['text']}" if verdict["text"] else ""
    )


def _seed(seed: dict[str, Any]) -> str:
    again = "" if seed["retry_s"] is None else f", again in {seed['retry_s']:.0f} s"
    return f"{seed['address']}: {seed['state']}" + (f", {seed['error']}" if seed["error"] else "") + again


def _warning(warning: dict[str, Any]) -> str:
    return str(warning["text"]) + (f" – {warning['remedy']}" if warning["remedy"] else "")


def _process(name: str, process: dict[str, Any]) -> str:
    restarts = process.get("restarts")
    if process["pid"] is None:
        return f"{name} none" + (f" (restarted {restarts}×)" if restarts else "")
    again = f", restarted {restarts}×" if restarts else ""
    return f"{name} {_text(process['pid'])} ({_amount(process['rss'])}B{again})"


def _text(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _decimal(value: float | None, digits: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _amount(value: float | None) -> str:
    """1234567 → ``1.2 M``."""
    if value is None:
        return f"{UNKNOWN} "
    for unit in ("", "k", "M", "G"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} T"
