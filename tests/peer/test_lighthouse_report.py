"""What a lighthouse says of itself, as a document and as metrics."""

from __future__ import annotations

import json
import re
from typing import Any

from dht.limits import Gauge
from dht.relay_process import RelayFigures
from peer.lighthouse_report import metrics, report

SAMPLE = re.compile(r'([a-z_]+(?:\{[a-z]+="[a-z_]+"\})?) (-?[0-9.e+-]+)')


def samples(document: dict[str, Any]) -> dict[str, float]:
    """Every sample of the text by name and label; each line is a sample or the type of those that follow."""
    text = metrics(document)
    assert text.endswith("\n")
    found: dict[str, float] = {}
    kind, typed = "", set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            kind, what = line.split()[2:]
            assert what in {"gauge", "counter"} and kind not in typed and kind.endswith("_total") == (what == "counter")
            typed.add(kind)
            continue
        match = SAMPLE.fullmatch(line)
        assert match and match[1].partition("{")[0] == kind and match[1] not in found, line
        found[match[1]] = float(match[2])
    return found


def test_limits_their_use_and_what_was_refused() -> None:
    gauges = [Gauge("streams", 128, "streams", 3, refused=2), Gauge("hello", 1024, "hellos", None)]
    document = report(gauges, None, 12.345)
    assert json.loads(json.dumps(document)) == {
        "schema": 1,
        "uptime_s": 12.3,
        "limits": [
            {"name": "streams", "in_use": 3, "limit": 128, "refused": 2},
            {"name": "hello", "in_use": None, "limit": 1024, "refused": 0},
        ],
        "relay": None,
    }
    assert samples(document) == {
        "murmur_uptime_seconds": 12.3,
        'murmur_limit_in_use{limit="streams"}': 3,
        'murmur_limit{limit="streams"}': 128,
        'murmur_limit{limit="hello"}': 1024,
        'murmur_refused_total{limit="streams"}': 2,
        'murmur_refused_total{limit="hello"}': 0,
    }


def test_figures_of_the_relay_with_a_label_for_each_reason() -> None:
    figures = RelayFigures(1.5, 4, 3, 2, 9, 1000, 12.5, {"full": 7}, {"closed": 5, "cut": 1})
    document = report([], figures, 0.0)
    assert document["relay"]["refused"] == {"full": 7}
    assert {name: value for name, value in samples(document).items() if "relay" in name} == {
        "murmur_relay_up_s": 1.5,
        "murmur_relay_connections": 4,
        "murmur_relay_reservations": 3,
        "murmur_relay_circuits": 2,
        "murmur_relay_opened": 9,
        "murmur_relay_bytes": 1000,
        "murmur_relay_bytes_per_s": 12.5,
        'murmur_relay_refused_total{reason="full"}': 7,
        'murmur_relay_ended_total{reason="closed"}': 5,
        'murmur_relay_ended_total{reason="cut"}': 1,
    }


def test_a_relay_that_has_told_nothing_yet_is_told_as_zeros() -> None:
    assert samples(report([], RelayFigures(), 0.0))["murmur_relay_circuits"] == 0
