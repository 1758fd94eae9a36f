"""The key file: made once, private, and told apart from damage."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from peer.identity import Identity
from protocols.errors import EnvironmentFault
from protocols.ids import public_key
from protocols.signing import verify

NOBODY = 65534


def test_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "home" / "key"
    made = Identity.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]
    assert Identity.load_or_create(path).peer == made.peer
    raw = path.read_bytes()
    secret = Ed25519PrivateKey.from_private_bytes(raw[4:36])
    assert raw[:4].hex() == "08011240" and raw[36:] == secret.public_key().public_bytes_raw()
    assert public_key(made.peer) == raw[36:]


def test_signature_of_rfc_8032() -> None:
    # Section 7.1, test 2
    identity = Identity.from_seed(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert identity.sign(b"\x72") == signature
    assert verify(identity.peer, b"\x72", signature)
    assert not verify(identity.peer, b"\x73", signature)


@given(st.text(max_size=60), st.binary(max_size=70))
def test_verify_never_raises(peer: str, signature: bytes) -> None:
    assert not verify(peer, b"data", signature)


def test_verify_refuses_other_lengths() -> None:
    identity = Identity.from_seed(bytes(32))
    signature = identity.sign(b"data")
    assert not verify(identity.peer, b"data", signature[:-1])
    assert not verify(identity.peer, b"data", signature + b"\0")


def test_open_mode_is_tightened_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    peer = Identity.load_or_create(path).peer
    path.chmod(0o644)
    assert Identity.load_or_create(path).peer == peer
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "could be read by others (mode 644)" in caplog.text


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda raw: raw[:-1], "67 bytes, not 68"),
        (lambda raw: raw + b"\0", "69 bytes, not 68"),
        (lambda raw: b"", "0 bytes, not 68"),
        (lambda raw: b"\x08\x00" + raw[2:], "does not hold a libp2p Ed25519 key"),
        (lambda raw: raw[:10] + bytes([raw[10] ^ 1]) + raw[11:], "two halves do not match"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "two halves do not match"),
    ],
)
def test_damage_is_named_and_the_file_kept(tmp_path: Path, damage: object, complaint: str) -> None:
    path = tmp_path / "key"
    Identity.load_or_create(path)
    assert callable(damage)
    broken = damage(path.read_bytes())
    path.write_bytes(broken)
    with pytest.raises(EnvironmentFault, match=complaint) as caught:
        Identity.load_or_create(path)
    assert str(path) in str(caught.value) and "restore" in caught.value.remedy
    assert path.read_bytes() == broken


def test_unusable_home_is_an_environment_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EnvironmentFault, match="Not a directory") as caught:
        Identity.load_or_create(tmp_path / "file" / "key")
    assert "--home" in caught.value.remedy


def test_unwritable_home_is_an_environment_fault() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o555)
        if user == 0:  # root may write anywhere
            os.seteuid(NOBODY)
        try:
            with pytest.raises(EnvironmentFault, match="cannot write the key"):
                Identity.load_or_create(home / "key")
        finally:
            os.seteuid(user)
            home.chmod(0o700)


def test_save_never_replaces_a_key(tmp_path: Path) -> None:
    first, second = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
    first.save(tmp_path / "key")
    with pytest.raises(EnvironmentFault, match="exists already"):
        second.save(tmp_path / "key")
    assert Identity.load(tmp_path / "key").peer == first.peer
    assert "secret" not in repr(first) and first.peer in repr(first)
