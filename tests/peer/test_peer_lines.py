"""The peers of a run as rows: who is connected, and by which way."""

from __future__ import annotations

import pytest

from peer.peers import Line, Record, rows
from protocols.ids import PeerId

OWN, A, B, C = (PeerId(name) for name in ("own", "a", "b", "c"))
WAY = ("connection", "transport", "sent", "received", "rtt_s")


@pytest.mark.parametrize(
    "line",
    [
        Line("direct", "tcp", 5, 7, 0.012),
        Line("punched", "quic", 0, 0),
        Line("relayed", "tcp", 1, 2),
        Line("direct", None, None, None),
    ],
)
def test_a_connection_is_told_by_kind_transport_and_bytes(line: Line) -> None:
    [own, row] = rows(OWN, None, {A: line}, {}, [])
    assert [row[each] for each in WAY] == [line.kind, line.transport, line.sent, line.received, line.rtt_s]
    assert own["own"] and not row["own"] and [own[each] for each in WAY] == [None] * 5


def test_oneself_comes_first_then_who_is_connected_and_nobody_twice() -> None:
    records = {A: Record("0.1.0", 7, ("/ip4/8.8.8.8/tcp/1/p2p/a",)), C: Record("0.1.0", None, ())}
    table = rows(OWN, None, {C: Line()}, records, [OWN, A, B])
    assert [each["id"] for each in table] == [OWN, C, A, B]
    assert [each["connection"] for each in table] == [None, "direct", None, None]
    assert [each["software"] for each in table] == [None, "0.1.0", "0.1.0", None]
    assert table[2]["addresses"] == ["/ip4/8.8.8.8/tcp/1/p2p/a"] and table[1]["head"] is None
    assert all(each["member"] is None for each in table)
