"""One of four says more than it should: the others seal what they would have sealed anyway, and name nobody else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from protocols import merkle
from protocols.compression import get_codec
from protocols.ids import Hash, PeerId, digest
from protocols.messages import Commit, Freeze, Gram, Ready, Result, Roster, Seal, Vote
from protocols.payloads import Piece, Pieces
from protocols.round.exchange import part_sizes
from protocols.round.roster import read_roster
from protocols.statements import Scope
from tests.swarm.crowd import PART, SCOPE, VALUES, Bend, Outcome, first_head, identities, run, state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from peer.identity import Identity
    from protocols.messages import Body
    from protocols.round.chain import Head

SIZES = part_sizes(get_codec("float32"), VALUES, PART)
LOST = Hash(b"?" * 32)
STRANGER = identities(9)[-1]


@cache
def honest() -> Outcome:
    """The round as it is without a liar."""
    return run(4)


@cache
def liar(role: str) -> Identity:
    """The coordinator of view 1, or another peer that owns parts."""
    record = honest().peers[0].sealed[0].record
    owning = [each for each in identities(4) if record.owners.count(each.peer) > 1 and each.peer != record.coordinator]
    return owning[0] if role == "reducer" else next(e for e in identities(4) if e.peer == record.coordinator)


def body_of(kind: str, payload: bytes) -> Body | None:
    """The statement inside a frame."""
    return SCOPE.decode(payload, sender="test").body if kind == "statement" else None


def chatter(role: str, before: str, extra: Callable[[PeerId, bytes], Sequence[tuple[str, bytes]]]) -> Outcome:
    """A run in which the liar sends more: ahead of every own frame of a kind, what ``extra`` makes of it."""
    who = liar(role)

    def bend(to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        own = kind != "statement" or SCOPE.decode(payload, sender="test").peer == who.peer
        body = body_of(kind, payload)
        if not own or (body.kind if body else kind) != before:
            return None
        return [*extra(to, payload), (kind, payload)]

    return run(4, bend=(who.peer, bend))


def unharmed(outcome: Outcome, role: str, *, refused: str = "", shown: str = "") -> None:
    """The honest sealed exactly what they would have sealed, and complain of the liar alone."""
    who = liar(role).peer
    for peer in outcome.peers:
        if peer.peer != who:
            assert [each.head.seal for each in peer.sealed] == honest().chains()[0]
    blamed(outcome, who, refused=refused, shown=shown)


def blamed(outcome: Outcome, who: PeerId, *, refused: str = "", shown: str = "") -> None:
    """Whoever is hung up on or shown is the liar; both happen if expected, with these words."""
    refused_ = [(sender, error) for refuser, sender, error in outcome.world.refused if refuser != who]
    assert {sender for sender, _ in refused_} | {error.peer for _, error in refused_} <= {who}
    assert {named for named, _ in outcome.troubles(but=who)} <= {who}
    refusals = [error.text for _, error in refused_]
    troubles = [text for _, text in outcome.troubles(but=who)]
    assert bool(refusals) == bool(refused)
    assert bool(troubles) == bool(shown)
    assert all(refused in text for text in refusals), refusals
    assert all(shown in text for text in troubles), troubles


def without(outcome: Outcome, role: str, *, refused: str) -> None:
    """The honest sealed the round in its first view; the liar is named, and nothing of its update is in it."""
    who = liar(role).peer
    for peer in outcome.peers:
        if peer.peer != who:
            assert [(each.record.view, each.record.void) for each in peer.sealed] == [(1, False)]
            line = next(each for each in _body(peer.sealed[0].head).contributions if each.peer == who)
            assert (line.parts, line.weight) == (0, 0.0)
    blamed(outcome, who, refused=refused)


def _body(head: Head) -> Seal:
    assert head.proposal is not None
    return cast("Seal", head.proposal.body)


# --- more than is asked for ------------------------------------------------------------------------


def bent_byte(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


GARBAGE: dict[str, Callable[[bytes], tuple[str, bytes]]] = {
    "nothing": lambda _: ("statement", b""),
    "noise": lambda _: ("statement", bytes(range(256))),
    "a bent byte": lambda payload: ("statement", bent_byte(payload)),
    "cut short": lambda payload: ("statement", payload[:-1]),
    "for another run": lambda _: ("statement", _state_in(Scope(b"x" * 32, "model"))),
    "for another cell": lambda _: ("statement", _state_in(Scope(b"r" * 32, "expert"))),
    "no parts": lambda _: ("parts", b""),
    "noisy parts": lambda _: ("parts", bytes(range(256))),
    "noisy results": lambda _: ("results", b"\x00" * 100),
    "a statement as parts": lambda payload: ("parts", payload),
}


def _state_in(scope: Scope) -> bytes:
    who = liar("reducer")
    return scope.state(who.peer, Vote(1, LOST), who.sign).encode()


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_and_harms_nobody(name: str) -> None:
    refused = "malformed" if name != "a bent byte" else "wrong signature"
    unharmed(chatter("reducer", "commit", lambda _, payload: [GARBAGE[name](payload)]), "reducer", refused=refused)


def ready(view: int = 1, head: Hash | None = None, commits: tuple[Hash, ...] = ()) -> Ready:
    """A ready on top of seal 0, or of another one."""
    return Ready(view, head or first_head(identities(4)).seal, 0, commits, b"", 0, ())


def roster() -> Roster:
    """One without anything in it."""
    return Roster(1, 0, first_head(identities(4)).seal, (), (), (), False)


FACES: dict[str, tuple[str, Body]] = {
    "commit": ("reducer", Commit(first_head(identities(4)).seal, LOST, (), 0, True)),
    "ready": ("reducer", ready(commits=(LOST,))),
    "vote": ("reducer", Vote(1, LOST)),
}


@pytest.mark.parametrize("kind", ["ready", "vote"])
def test_a_second_face_is_shown_and_not_believed(kind: str) -> None:
    role, other = FACES[kind]
    who = liar(role)

    def bend(_to: PeerId, frame: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        body = body_of(frame, payload)
        if body is None or body.kind != kind or SCOPE.decode(payload, sender="test").peer != who.peer:
            return None
        return [(frame, payload), *[(frame, state(other, who))] * 2]  # behind the true one, so that this counts

    outcome = run(4, bend=(who.peer, bend))
    unharmed(outcome, role, shown=f"signed two {kind}s for one slot")
    assert all(len(peer.troubles) <= 1 for peer in outcome.peers), "said once, however often it comes"


def test_a_second_seal_ahead_of_the_true_one_does_not_keep_a_peer_behind() -> None:
    """Two faces of a coordinator: the false one to one peer first, which must follow the certificate all the same."""
    who = liar("coordinator")
    seen: set[str] = set()
    for victim in [each.peer for each in identities(4) if each.peer != who.peer]:
        outcome = run(4, bend=(who.peer, _two_seals(victim)))
        blamed(outcome, who.peer, shown="seal" if outcome.troubles(but=who.peer) else "")
        assert {(len(peer.sealed), peer.sealed[-1].head.seal) for peer in outcome.peers} == {
            (1, outcome.peers[0].sealed[-1].head.seal)
        }
        seen.update(text for _, text in outcome.troubles(but=who.peer))
    assert seen == {"proposes a seal that differs in state", "signed two seals for one slot"}


def _two_seals(victim: PeerId) -> Bend:
    who = liar("coordinator")

    def bend(to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        body = body_of(kind, payload)
        if to != victim or not isinstance(body, Seal):
            return None
        return [(kind, state(replace(body, state=LOST), who)), (kind, payload)]

    return bend


def _frame(maker: PeerId, pieces: Sequence[Piece], core: Hash) -> bytes:
    return b"".join(bytes(each) for each in Pieces(core, maker, tuple(pieces)).encode())


def _bulk(payload: bytes) -> tuple[Pieces, Piece]:
    frame = Pieces.decode(payload, SIZES, sender="test")
    return frame, frame.pieces[0]


def _again(payload: bytes, **changes: Any) -> bytes:
    """The first piece of a frame of parts, with something else about it."""
    frame, piece = _bulk(payload)
    return _frame(changes.pop("maker", frame.maker), [replace(piece, **changes)], changes.pop("core", frame.core))


def _spoilt(data: Any, value: float) -> bytes:
    values = np.frombuffer(data, dtype="<f4").copy()
    values[7] = value
    return values.tobytes()


def _not_owned(to: PeerId, payload: bytes) -> bytes:
    owners = honest().peers[0].sealed[0].record.owners
    index = next(i for i, owner in enumerate(owners) if owner != to and SIZES[i] == SIZES[0])
    return _again(payload, index=index, data=bytes(SIZES[index]))


BULK: dict[str, tuple[str, str, Callable[[PeerId, bytes], bytes]]] = {
    "NaN": ("parts", "not what it committed to", lambda _, raw: _again(raw, data=_spoilt(_bulk(raw)[1].data, np.nan))),
    "Inf": ("parts", "not what it committed to", lambda _, raw: _again(raw, data=_spoilt(_bulk(raw)[1].data, np.inf))),
    "another norm": ("parts", "not what it committed to", lambda _, raw: _again(raw, norm2=1.0)),
    "no path": ("parts", "not what it committed to", lambda _, raw: _again(raw, path=())),
    "another path": ("parts", "not what it committed to", lambda _, raw: _again(raw, path=(LOST,) * 3)),
    "of a stranger": ("parts", "no contributor", lambda _, raw: _again(raw, maker=STRANGER.peer)),
    "beyond the end": ("parts", "beyond 6 parts", lambda _, raw: _again(raw, index=6)),
    "a byte short": ("parts", "do not fit", lambda _, raw: raw[:-1]),
    "a changed result": ("results", "is not what", lambda _, raw: _again(raw, data=_spoilt(_bulk(raw)[1].data, 1.0))),
    "a result without path": ("results", "is not what", lambda _, raw: _again(raw, path=(LOST,) * 9)),
    "a result cut short": ("results", "do not fit", lambda _, raw: raw[:-1]),
    "a result twice": (
        "results",
        "a part twice",
        lambda _, raw: _frame(_bulk(raw)[0].maker, [_bulk(raw)[1]] * 2, LOST),
    ),
}


@pytest.mark.parametrize("name", BULK)
def test_bytes_that_no_root_covers_are_refused_and_harm_nobody(name: str) -> None:
    kind, refused, make = BULK[name]
    outcome = chatter("reducer", kind, lambda to, payload: [(kind, make(to, payload))])
    unharmed(outcome, "reducer", refused=refused)


def test_bytes_for_another_round_or_another_reducers_parts_change_nothing() -> None:
    def extra(to: PeerId, payload: bytes) -> list[tuple[str, bytes]]:
        frame, piece = _bulk(payload)
        unknown = [(kind, _frame(frame.maker, [piece], LOST)) for kind in ("parts", "results")]
        return [*unknown, ("parts", _not_owned(to, payload)), ("parts", _again(payload, maker=to))]

    unharmed(chatter("reducer", "parts", extra), "reducer")


OUT_OF_TURN: dict[str, Callable[[Any], Body]] = {
    "roster": lambda _: roster(),
    "freeze": lambda gram: Freeze(1, 0, gram.roster, (), ()),
    "seal": lambda _: _seal(),
}


def _seal() -> Seal:
    return _body(honest().peers[0].sealed[0].head)


@pytest.mark.parametrize(
    ("kind", "before", "refused"),
    [("roster", "ready", "not its turn"), ("freeze", "gram", "out of turn")],
)
def test_who_has_not_the_turn_proposes_in_vain(kind: str, before: str, refused: str) -> None:
    def extra(_to: PeerId, payload: bytes) -> list[tuple[str, bytes]]:
        body = body_of("statement", payload)
        made = OUT_OF_TURN[kind](body)
        return [("statement", state(made, liar("reducer")))]

    unharmed(chatter("reducer", before, extra), "reducer", refused=refused)


def test_a_seal_out_of_turn_is_refused() -> None:
    outcome = chatter("reducer", "result", lambda *_: [("statement", state(_seal(), liar("reducer")))])
    unharmed(outcome, "reducer", refused="out of turn")


@pytest.mark.parametrize("kind", ["gram", "result", "vote", "ready", "seal", "freeze", "roster"])
def test_strangers_are_not_heard(kind: str) -> None:
    said: dict[str, Body] = {
        "gram": Gram(LOST, b"", (), LOST),
        "result": Result(LOST, (), LOST),
        "vote": Vote(1, _name()),
        "ready": ready(),
        "seal": _seal(),
        "freeze": Freeze(1, 0, LOST, (), ()),
        "roster": roster(),
    }
    outcome = chatter("reducer", "commit", lambda *_: [("statement", state(said[kind], STRANGER))])
    unharmed(outcome, "reducer")


def _name() -> Hash:
    return honest().chains()[0][0]


# --- in place of what is asked for -----------------------------------------------------------------


@dataclass(frozen=True)
class Forged:
    """An update whose root is committed to, whatever its bytes are."""

    data: list[bytes]
    norms: list[float]

    def tree(self, who: PeerId) -> merkle.Tree:
        parent = first_head(identities(4)).seal
        return merkle.Tree(
            [
                merkle.Leaves(SCOPE.run, SCOPE.cell, parent, who).leaf(index, norm2, digest(data))
                for index, (data, norm2) in enumerate(zip(self.data, self.norms, strict=True))
            ]
        )


def forged(value: float | None, norm2: float | None = None) -> Forged:
    """All ones, or with one other value in each part, and norms that fit unless given."""
    data, norms = [], []
    for size in SIZES:
        values = np.ones(size // 4, dtype="<f4")
        if value is not None:
            values[3] = value
        data.append(values.tobytes())
        true = float(np.square(values.astype(np.float64)).sum())
        norms.append(norm2 if norm2 is not None else (true if np.isfinite(true) else 1.0))
    return Forged(data, norms)


@pytest.mark.parametrize(
    ("update", "refused"),
    [
        (forged(float("nan")), "not finite"),
        (forged(float("inf")), "not finite"),
        (forged(float("-inf")), "not finite"),
        (forged(2.0**91), "larger than any training makes it"),
        (forged(3.4e38), "larger than any training makes it"),
        (forged(None, 1.0), "claims squared norm 1"),
        (forged(None, 32768.0 * (1 + 3e-6)), "claims squared norm"),
        (forged(None, 0.0), "claims squared norm 0"),
        (forged(None, -1.0), "claims squared norm -1"),
    ],
)
def test_an_update_that_is_committed_to_and_no_update_is_refused(update: Forged, refused: str) -> None:
    who = liar("reducer")
    tree = update.tree(who.peer)

    def bend(to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        body = body_of(kind, payload)
        if isinstance(body, Commit) and SCOPE.decode(payload, sender="test").peer == who.peer:
            return [(kind, state(replace(body, root=tree.root), who))]
        if isinstance(body, Roster):  # its own machine does not know these bytes and pushes nothing
            cast_ = read_roster(
                SCOPE.decode(payload, sender="test"), SCOPE, first_head(identities(4)), parts=len(SIZES), open_=True
            )
            pieces = [Piece(k, update.data[k], tree.path(k), update.norms[k]) for k in cast_.owned(to)]
            return [(kind, payload), ("parts", _frame(who.peer, pieces, cast_.core))]
        return None

    without(run(4, bend=(who.peer, bend)), "reducer", refused=refused)
