"""Checking signatures: a peer id is an Ed25519 public key, so a name is all that is needed."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .errors import RemoteError
from .ids import Hash, digest, public_key

SIGNATURE_BYTES = 64
_REMEMBERED = 2048
_good: dict[Hash, None] = {}
"""Signatures found good, oldest first: in a flood every statement arrives once from every neighbour."""


def verify(peer: str, data: bytes, signature: bytes) -> bool:
    """Whether ``signature`` (64 bytes) is ``peer``'s over ``data``; False for anything malformed."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    key = digest(peer.encode(), data, signature)
    if key in _good:
        return True
    try:
        Ed25519PublicKey.from_public_bytes(public_key(peer)).verify(signature, data)
    except (InvalidSignature, RemoteError, ValueError):
        return False
    _good[key] = None
    if len(_good) > _REMEMBERED:
        _good.pop(next(iter(_good)), None)
    return True
