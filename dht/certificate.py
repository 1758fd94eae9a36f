"""Whose a libp2p TLS certificate is (libp2p specification "TLS", "Peer Authentication").

A certificate is signed by its own key alone. An extension holds the peer's public key and its signature over the
certificate's key: that ties the connection to the peer. No authority is asked, and no clock: whoever holds the
certificate's key has just shown it in the handshake, so an old certificate proves as much as a new one.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import Certificate, ObjectIdentifier, UnrecognizedExtension, load_der_x509_certificate

from protocols.ids import PeerId, peer_id

CERTIFICATE_BYTES = 8192
"""Of a certificate; p2pd's has about 400."""
EXTENSION = ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
SIGNED = b"libp2p-tls-handshake:"
"""What the peer signs, before the certificate's SubjectPublicKeyInfo."""

_LEAD = bytes.fromhex("3068042408011220")
"""DER has one form for a sequence of two strings of 36 and 64 bytes, the first of which is an Ed25519 key."""
_MIDDLE = bytes.fromhex("0440")
_KEY, _SIGNATURE = slice(8, 40), slice(42, 106)


def owner(der: bytes) -> PeerId:
    """The peer that a certificate (DER) belongs to; raises ValueError, which says what is wrong with it.

    That whoever showed it holds its key is for the TLS handshake to find out.
    """
    if len(der) > CERTIFICATE_BYTES:
        raise ValueError(f"a certificate of {len(der)} bytes")
    try:
        certificate = load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(certificate)
        subject = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        raw = _extension(certificate)
    except Exception as error:  # cryptography raises many kinds, all of them mean "not a certificate of libp2p"
        raise ValueError("not a certificate of libp2p") from error
    if len(raw) != _SIGNATURE.stop or raw[: _KEY.start] != _LEAD or raw[_KEY.stop : _SIGNATURE.start] != _MIDDLE:
        raise ValueError("a certificate without an Ed25519 key of a peer")
    try:
        Ed25519PublicKey.from_public_bytes(raw[_KEY]).verify(raw[_SIGNATURE], SIGNED + subject)
    except (InvalidSignature, ValueError) as error:
        raise ValueError("a certificate that its peer has not signed") from error
    return peer_id(raw[_KEY])


def _extension(certificate: Certificate) -> bytes:
    value = certificate.extensions.get_extension_for_oid(EXTENSION).value
    return value.value if isinstance(value, UnrecognizedExtension) else b""
