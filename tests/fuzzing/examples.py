"""Valid examples for the decoders: what honest peers and daemons write."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dht.certificate import EXTENSION, SIGNED
from peer.identity import Identity
from peer.state import Checkpoint
from protocols.chain_payloads import AskChain, ChainReply, Link
from protocols.ids import Hash, public_key
from protocols.manifest import Manifest, ShardEntry, Start, sign
from protocols.manifest_defaults import Choices, default_manifest
from protocols.messages import (
    Body,
    Commit,
    Contribution,
    Freeze,
    Gram,
    Leg,
    Ready,
    Result,
    ResultRoot,
    Roster,
    Seal,
    Vote,
)
from protocols.outer import state_root
from protocols.round.chain import Head, seal_hash, seal_zero
from protocols.statements import Scope, Statement

RUN = bytes(range(32))
SCOPE = Scope(RUN, "model")
ME, OTHER, THIRD, FOURTH = (Identity.from_seed(bytes([number]) * 32) for number in range(1, 5))
KEYS = (ME, OTHER, THIRD, FOURTH)
ONE, TWO = Hash(b"1" * 32), Hash(b"2" * 32)
VALUES = 40


def say(body: Body, key: Identity = ME) -> Statement:
    """A body signed by ``key``."""
    return SCOPE.state(key.peer, body, key.sign)


@cache
def bodies() -> tuple[Body, ...]:
    """One of each kind, lists filled."""
    commit = Commit(ONE, TWO, (Leg(ONE, 25, 25_600), Leg(TWO, 3, 3072)), up=1000, direct=True)
    ready = Ready(7, ONE, 6, (ONE, TWO), ONE, 5, (OTHER.peer,))
    commits, readys = [say(commit, each).encode() for each in KEYS], [say(ready, each).encode() for each in KEYS]
    lines = tuple(Contribution(each.peer, ONE, 25_600, 12, 0.25) for each in KEYS)
    roots = (ResultRoot(ME.peer, 0, ONE), ResultRoot(OTHER.peer, 1, TWO))
    seal = Seal(7, ONE, 3, TWO, bytes(32), (OTHER.peer,), (ONE, TWO), lines, roots, (), ONE, TWO)
    return (
        commit, ready, Roster(7, 1, ONE, tuple(commits), tuple(readys), (OTHER.peer,), False),
        Gram(ONE, b"\xff\x0f", (1.0, 0.5, 2.0), TWO), Freeze(7, 0, ONE, (ONE, TWO), ()), Result(ONE, (ME.peer,), TWO),
        seal, Vote(7, ONE),
    )  # fmt: skip


@cache
def heads() -> tuple[Head, ...]:
    """Seal 0 of four founders and three certified ones on top of it; every state is the same vector."""
    head = seal_zero(SCOPE, [each.peer for each in KEYS], root())
    found = [head]
    for number in range(1, 4):
        seal = Seal(number, head.seal, number, ONE, b"", (), (), (), (), (), head.table.root, root())
        name = seal_hash(SCOPE, seal)
        votes = tuple(say(Vote(number, name), each) for each in KEYS)
        head = Head(name, number, number, replace(head.table), say(seal), votes, head.table)
        found.append(head)
    return tuple(found)


def vector() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Some parameters."""
    return np.linspace(-1, 1, VALUES, dtype=np.float32)


def root() -> Hash:
    """Of the state in every seal of ``heads``."""
    return state_root(vector(), vector())


def checkpoint() -> Checkpoint:
    """The newest head with its state and a drift."""
    return Checkpoint(heads()[-1], vector(), vector(), vector() * np.float32(0.5), (1, 0))


def chains() -> tuple[bytes, ...]:
    """Replies of several links with a shown final seal, of one, and of none."""
    links = []
    for head in heads()[1:]:
        assert head.proposal is not None
        links.append(Link(head.proposal, head.votes, head.table))
    readys = tuple(say(Ready(4, heads()[3].seal, 3, (), b"", 0, ()), each) for each in KEYS)
    shown = [*links[:2], replace(links[2], final=readys)]
    zero = heads()[0].seal
    replies = (ChainReply(zero, tuple(shown)), ChainReply(zero, tuple(links[:1]), more=True), ChainReply(None, ()))
    return tuple(each.encode() for each in replies)


def ask_chain() -> bytes:
    """A locator of four seals."""
    return AskChain(tuple(each.seal for each in heads())).encode()


@cache
def manifests() -> tuple[Manifest, ...]:
    """A signed one, a private one, and one with a start."""
    shards = (ShardEntry("hamlet", 5, "ab" * 32), ShardEntry("sub/lear", 7, "cd" * 32))
    plain = default_manifest(Choices(size="nano"), founders=[ME.peer, OTHER.peer], shards=shards)
    private = default_manifest(Choices(allow=(THIRD.peer,), seed=5), founders=[ME.peer], shards=shards)
    later = replace(plain, start=Start("ab" * 32, 9, "cd" * 32, 8 * 81_648, "ef" * 32))
    return tuple(sign(each, ME.peer, ME.sign) for each in (plain, private, later))


def certificate() -> bytes:
    """What ``ME`` shows in a TLS handshake, always the same bytes."""
    key, name, day = Ed25519PrivateKey.from_private_bytes(bytes(32)), x509.Name([]), datetime(2020, 1, 1, tzinfo=UTC)
    subject = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    whose = b"\x08\x01\x12\x20" + public_key(ME.peer)
    extension = b"\x30\x68\x04\x24" + whose + b"\x04\x40" + ME.sign(SIGNED + subject)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day)
    builder = builder.add_extension(x509.UnrecognizedExtension(EXTENSION, extension), critical=False)
    return builder.sign(key, None).public_bytes(Encoding.DER)
