"""A founder that changes what it sends: well-formed lies, signed, and broken frames, at random. Nobody else is harmed.

The virtual swarm checks its invariants for the honest ones after every event; what is not a RemoteError ends the test.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from protocols.canonical import pack
from protocols.frames import PAYLOAD_LIMITS
from protocols.messages import BODIES
from tests.fuzzing.mutation import mutate, plausible
from tests.swarm import crowd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peer.identity import Identity
    from protocols.ids import PeerId

HONEST_SHARE = 0.6
"""Of the liar's frames: else nobody listens to it for long."""


def lie(draw: Random, liar: Identity, payload: bytes, known: list[Any]) -> bytes:
    """A statement with other fields, its slot in order again more often than not, signed by ``liar``."""
    signed = msgpack.unpackb(msgpack.unpackb(payload)["raw"])
    for value in signed["fields"].values():
        known += [value] if isinstance(value, bytes) else []
    del known[:-200]
    for _ in range(draw.choice((1, 1, 2, 3))):
        signed["fields"] = plausible(draw, signed["fields"], known)
    if draw.random() < 0.8:
        try:
            signed["slot"] = BODIES[signed["kind"]].from_wire(signed["fields"]).slot()
        except ValueError:
            pass
    raw = msgpack.packb(signed)
    return pack({"peer": liar.peer, "raw": raw, "signature": liar.sign(raw)})


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_harmed_by_what_a_founder_makes_up(seed: int) -> None:
    draw, keys = Random(seed), crowd.identities(4)
    liar = draw.choice(keys)
    known: list[Any] = [bytes(32), *(each.peer for each in keys)]
    told = 0

    def bend(_: PeerId, kind: str, payload: bytes) -> Sequence[tuple[str, bytes]] | None:
        nonlocal told
        if draw.random() < HONEST_SHARE:
            return None
        told += 1
        if kind == "statement":
            return [(kind, lie(draw, liar, payload, known))]
        return [(kind, mutate(draw, [payload], PAYLOAD_LIMITS[kind])[: PAYLOAD_LIMITS[kind]])]

    made = crowd.world(4, 2, seed=seed, newcomers=seed % 2)
    crowd.lying(made, liar.peer, bend)
    made.run(300)
    assert told > 20, "or this test shows nothing"
    honest = [peer for peer in made.peers.values() if peer.peer in {each.peer for each in keys} - {liar.peer}]
    assert max(len(peer.sealed) for peer in honest) >= 1, "three of four go on"
