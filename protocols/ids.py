"""Names of peers, runs, cells and things that are hashed.

A peer id *is* its Ed25519 public key: base58 of ``00 24 08 01 12 20`` + 32 key bytes
(libp2p peer-id specification, identity multihash of the protobuf public key).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NewType

import base58
from blake3 import blake3

from .errors import RemoteError

PeerId = NewType("PeerId", str)
"""A libp2p peer id, ``12D3Koo…``; the peer's Ed25519 public key in base58."""

Hash = NewType("Hash", bytes)
"""A BLAKE3 digest, 32 bytes."""

HASH_BYTES = 32
PROTOCOL = 1
"""Version of everything peers say to each other; a different one is refused at the handshake."""

_ED25519_PREFIX = bytes.fromhex("002408011220")


JOINED = 4096
"""Bytes up to which it is quicker to join the parts than to hash them one by one."""


def digest(*parts: bytes | memoryview) -> Hash:
    """BLAKE3 of the parts, each preceded by its length as u64 LE, so that no two lists collide."""
    framed: list[bytes | memoryview] = []
    for part in parts:
        framed += (len(part).to_bytes(8, "little"), part)
    if sum(map(len, parts)) <= JOINED:
        return Hash(blake3(b"".join(framed)).digest())
    state = blake3()
    for each in framed:
        state.update(each)
    return Hash(state.digest())


def peer_id(public_key: bytes) -> PeerId:
    """The peer id of a raw 32-byte Ed25519 public key."""
    if len(public_key) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    return PeerId(base58.b58encode(_ED25519_PREFIX + public_key).decode())


@lru_cache(maxsize=4096)
def public_key(peer: str) -> bytes:
    """The 32 key bytes inside a peer id; raises RemoteError when it holds no Ed25519 key."""
    if not 40 <= len(peer) <= 64:
        raise RemoteError(peer[:64], "is not a peer id")
    try:
        raw = base58.b58decode(peer)
    except ValueError as error:
        raise RemoteError(peer, "is not a base58 peer id") from error
    if len(raw) != 38 or raw[:6] != _ED25519_PREFIX:
        raise RemoteError(peer, "is not the id of an Ed25519 key")
    return raw[6:]


def short(peer: str) -> str:
    """``12D3…f4Q``: enough to tell peers apart on a screen."""
    return f"{peer[:4]}…{peer[-4:]}"
