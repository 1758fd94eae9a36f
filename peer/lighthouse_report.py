"""What a lighthouse says of itself: one document, and the same as Prometheus metrics. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dht.limits import Gauge
    from dht.relay_process import RelayFigures


def report(gauges: Iterable[Gauge], relay: RelayFigures | None, uptime_s: float) -> dict[str, Any]:
    """The document: seconds since the start, limits of the entry with their use, figures of the relay."""
    limits = [
        {"name": each.name, "in_use": each.in_use, "limit": each.limit, "refused": each.refused} for each in gauges
    ]
    figures = asdict(relay) if relay is not None else None
    return {"schema": 1, "uptime_s": round(uptime_s, 1), "limits": limits, "relay": figures}


def metrics(document: dict[str, Any]) -> str:
    """The document in Prometheus' text format (exposition format 0.0.4)."""
    lines = ["# TYPE murmur_uptime_seconds gauge", f"murmur_uptime_seconds {document['uptime_s']}"]
    for key, name, kind in (
        ("in_use", "murmur_limit_in_use", "gauge"),
        ("limit", "murmur_limit", "gauge"),
        ("refused", "murmur_refused_total", "counter"),
    ):
        lines.append(f"# TYPE {name} {kind}")
        lines += [
            f'{name}{{limit="{each["name"]}"}} {each[key]}' for each in document["limits"] if each[key] is not None
        ]
    for name, value in (document["relay"] or {}).items():
        lines += _relay(name, value)
    return "\n".join(lines) + "\n"


def _relay(name: str, value: Any) -> list[str]:
    """One figure of the relay; a table has a label for each entry."""
    if isinstance(value, dict):
        rows = [f'murmur_relay_{name}_total{{reason="{reason}"}} {count}' for reason, count in value.items()]
        return [f"# TYPE murmur_relay_{name}_total counter", *rows]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    return [f"# TYPE murmur_relay_{name} gauge", f"murmur_relay_{name} {value}"]
