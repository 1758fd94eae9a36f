"""This machine's Ed25519 key: who a peer is, in a file that p2pd reads as well.

The file is a libp2p ``PrivateKey`` protobuf: ``08 01 12 40`` + 32 secret bytes + 32 public bytes
(libp2p peer-id specification, "Keys"), mode 0600.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.errors import EnvironmentFault
from protocols.ids import PeerId, peer_id

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX = bytes.fromhex("08011240")
_FILE_BYTES = len(_PREFIX) + 64


class Identity:
    """A key pair; the secret never leaves the object except into its file."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = key.public_key().public_bytes_raw()
        self.peer: PeerId = peer_id(self._public)

    def __repr__(self) -> str:
        return f"Identity({self.peer})"

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity whose secret is ``seed`` (32 bytes): for swarms that must be reproducible."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The identity in ``path``, made at first use; raises EnvironmentFault (unreadable, unwritable, corrupt)."""
        try:
            return cls.load(path)
        except FileNotFoundError:
            identity = cls(Ed25519PrivateKey.generate())
            return identity if identity._create(path) else cls.load(path)

    @classmethod
    def load(cls, path: Path, *, remedy: str = "") -> Identity:
        """The identity in ``path``; raises FileNotFoundError when there is none, EnvironmentFault when it is no key.

        ``remedy``: what to do about a file that is none, where it is not a home's own.
        """
        try:
            raw = _read_private(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise EnvironmentFault(
                f"cannot read the key {path}: {error.strerror}",
                remedy=remedy or f"make {path} readable for this user, or choose another --home",
            ) from error
        return cls._parse(raw, path, remedy)

    @classmethod
    def decode(cls, raw: bytes, name: str) -> Identity:
        """The identity whose key file has these bytes; raises EnvironmentFault, which calls them ``name``."""
        return cls._parse(raw, name, "give what `murmur key export` wrote")

    def encoded(self) -> bytes:
        """The bytes of its key file: the secret itself."""
        return _PREFIX + self._key.private_bytes_raw() + self._public

    def save(self, path: Path, *, remedy: str = "choose another --home, or move the file away") -> None:
        """Write the key file for a new home; raises EnvironmentFault when a file is there already."""
        if not self._create(path):
            raise EnvironmentFault(f"{path} exists already", remedy=remedy)

    def sign(self, data: bytes) -> bytes:
        """The 64-byte Ed25519 signature of ``data`` (RFC 8032; deterministic)."""
        return self._key.sign(data)

    @classmethod
    def _parse(cls, raw: bytes, path: Path | str, remedy: str) -> Identity:
        remedy = remedy or (
            f"restore {path} from a backup, or move it away: the next start makes a new key, and this peer a newcomer"
        )
        if len(raw) != _FILE_BYTES:
            raise EnvironmentFault(f"the key {path} is damaged: {len(raw)} bytes, not {_FILE_BYTES}", remedy=remedy)
        if not raw.startswith(_PREFIX):
            raise EnvironmentFault(f"{path} does not hold a libp2p Ed25519 key", remedy=remedy)
        identity = cls.from_seed(raw[4:36])
        if identity._public != raw[36:]:
            raise EnvironmentFault(f"the key {path} is damaged: its two halves do not match", remedy=remedy)
        return identity

    def _create(self, path: Path) -> bool:
        """Write the file durably, all or nothing; False when another process was first."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                _write_synced(temporary, self.encoded())
                _put_in_place(temporary, path)
                _sync_directory(path.parent)
            finally:
                temporary.unlink(missing_ok=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write the key {path}: {error.strerror}",
                remedy=f"make {path.parent} writable for this user, free some disk space, or choose another --home",
            ) from error
        return True


def _read_private(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            log.warning("%s could be read by others (mode %o); set to 600", path, mode)
            os.fchmod(file.fileno(), 0o600)
        return file.read(_FILE_BYTES + 1)


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(temporary: Path, path: Path) -> None:
    """Give the finished file its name; a hard link, unlike a rename, never replaces a key that is already there."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        temporary.rename(path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a directory
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
