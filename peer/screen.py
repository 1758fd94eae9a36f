"""The status document as one screen of text. Pure; what is unknown is shown as ``–``."""

from __future__ import annotations

from typing import Any

SHOWN_VERDICTS = 5
UNKNOWN = "–"


def screen(status: dict[str, Any]) -> str:
    """Lines without a final newline; reads only keys of the contract, and misses none of them."""
    run, now, model = status["run"], status["round"], status["model"]
    speed, peers = status["speed"], status["peers"]
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
    return "\n".join(f"{name:<10} {text}" for name, text in lines)


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
