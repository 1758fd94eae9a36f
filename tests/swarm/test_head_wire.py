"""A head from a checkpoint: any bent certificate, table, vote or state is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from protocols.canonical import pack, unpack
from protocols.errors import RemoteError
from protocols.ids import Hash
from protocols.messages import Seal, Vote
from protocols.outer import state_root
from protocols.round.chain import Head, check_head, head_from_wire, head_to_wire, verify_certificate
from protocols.statements import Scope, Statement
from tests.swarm.crowd import SCOPE, identities, run

LOST = Hash(b"?" * 32)
REFUSED = (ValueError, RemoteError)


@cache
def sealed() -> tuple[Head, Hash, list[Any]]:
    """The second head of four peers, its state root, their keys."""
    peers = run(4, 2, values=300).peers
    last = peers[0].sealed[-1]
    return peers[0].machine.head, state_root(last.params, last.momentum), identities(4)


def wire() -> dict[str, Any]:
    value = unpack(pack(head_to_wire(sealed()[0])))
    assert isinstance(value, dict)
    return value


def check(value: object) -> None:
    """What a checkpoint's reader does."""
    check_head(head_from_wire(value, SCOPE), SCOPE, sealed()[1])


def test_a_head_comes_back_with_its_proof() -> None:
    head, root, _ = sealed()
    found = head_from_wire(wire(), SCOPE)
    check_head(found, SCOPE, root)
    assert (found.seal, found.view, found.round, found.table.root) == (
        head.seal,
        head.view,
        head.round,
        head.table.root,
    )
    assert (found.proposal, found.votes) == (head.proposal, head.votes)


def _signed(body: Any, who: Any) -> bytes:
    statement: Statement = SCOPE.state(who.peer, body, who.sign)
    return statement.encode()


def _seal() -> Seal:
    proposal = sealed()[0].proposal
    assert proposal is not None
    assert isinstance(proposal.body, Seal)
    return proposal.body


BENT: dict[str, Any] = {
    "another name": lambda at: {**at, "seal": LOST},
    "another view": lambda at: {**at, "view": at["view"] + 1},
    "another round": lambda at: {**at, "round": at["round"] + 1},
    "no proposal": lambda at: {**at, "proposal": b""},
    "a vote as proposal": lambda at: {**at, "proposal": at["votes"][0]},
    "a bent proposal": lambda at: {**at, "proposal": at["proposal"][:-1] + bytes([at["proposal"][-1] ^ 1])},
    "a seal nobody voted for": lambda at: {
        **at, "proposal": _signed(replace(_seal(), state=LOST), sealed()[2][0])
    },
    "no votes": lambda at: {**at, "votes": []},
    "two votes": lambda at: {**at, "votes": at["votes"][:2]},
    "one vote four times": lambda at: {**at, "votes": at["votes"][:1] * 4},
    "a seal among the votes": lambda at: {**at, "votes": [*at["votes"][:2], at["proposal"]]},
    "a bent vote": lambda at: {**at, "votes": [at["votes"][0][:-1] + bytes([at["votes"][0][-1] ^ 1])]},
    "votes of another view": lambda at: {
        **at, "votes": [_signed(Vote(9, at["seal"]), each) for each in sealed()[2]]
    },
    "votes for another seal": lambda at: {
        **at, "votes": [_signed(Vote(at["view"], LOST), each) for each in sealed()[2]]
    },
    "votes of strangers": lambda at: {
        **at, "votes": [_signed(Vote(at["view"], at["seal"]), each) for each in identities(9)[4:]]
    },
    "no voters": lambda at: {**at, "parent_table": []},
    "a member more": lambda at: {**at, "table": [*at["table"], {**at["table"][0], "peer": identities(9)[-1].peer}]},
    "a member less": lambda at: {**at, "table": at["table"][1:]},
    "more weight": lambda at: {**at, "table": [{**at["table"][0], "weight": 2.0}, *at["table"][1:]]},
    "endless weight": lambda at: {**at, "parent_table": [{**at["table"][0], "weight": 1e308}] * 4},
    "a field more": lambda at: {**at, "more": 1},
    "a field less": lambda at: {key: each for key, each in at.items() if key != "votes"},
    "a table that is none": lambda at: {**at, "table": 7},
    "a list": lambda at: [at],
    "nothing": lambda at: None,
}  # fmt: skip


@pytest.mark.parametrize("name", BENT)
def test_a_bent_head_is_refused(name: str) -> None:
    check(wire())
    with pytest.raises(REFUSED):
        check(BENT[name](wire()))


def test_another_state_run_or_cell_is_refused() -> None:
    head = sealed()[0]
    with pytest.raises(ValueError, match="parameters or momentum"):
        check_head(head, SCOPE, LOST)
    for other in (Scope(b"x" * 32, "model"), Scope(b"r" * 32, "expert")):
        with pytest.raises(RemoteError, match="another run or cell"):
            head_from_wire(wire(), other)


def test_a_certificate_needs_more_than_two_thirds_of_the_parents_voters() -> None:
    head = sealed()[0]
    assert head.proposal is not None
    assert head.parent_table is not None
    assert len(head.votes) == 4
    assert verify_certificate(SCOPE, head.parent_table, head.proposal, head.votes[:3]) == head.seal
    with pytest.raises(RemoteError, match="lacks a quorum") as caught:
        verify_certificate(SCOPE, head.parent_table, head.proposal, head.votes[:2])
    assert caught.value.peer == head.proposal.peer
    with pytest.raises(RemoteError, match="without a seal"):
        verify_certificate(SCOPE, head.parent_table, head.votes[0], head.votes)
