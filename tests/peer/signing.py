"""One key and one scope, bodies to sign, and journals that sign them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peer.identity import Identity
from peer.journal import Journal
from protocols.ids import Hash, digest
from protocols.messages import Body, Ready, Result, Vote
from protocols.statements import Scope, Statement

if TYPE_CHECKING:
    from pathlib import Path

ME = Identity.from_seed(bytes(31) + b"\x05")
SCOPE = Scope(bytes(range(32)), "model")


def name(label: object) -> Hash:
    return digest(str(label).encode())


def vote(view: int, seal: object = "seal") -> Vote:
    return Vote(view, name(seal))


def ready(view: int, *commits: str) -> Ready:
    return Ready(view, name("head"), 0, tuple(name(each) for each in commits), b"", 0, ())


def result(label: object, root: object = "root") -> Result:
    return Result(name(label), (), name(root))


def open_journal(path: Path) -> Journal:
    return Journal(path, SCOPE, ME.peer, ME.sign)


def signed(path: Path, *bodies: Body, round_number: int = 1) -> list[Statement]:
    """What a journal opened afresh signs for these bodies."""
    journal = open_journal(path)
    try:
        return [journal.sign(body, round_number) for body in bodies]
    finally:
        journal.close()
