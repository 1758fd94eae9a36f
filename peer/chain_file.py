"""The chain on the disk, beside the checkpoints: what a restarted peer needs to serve those who know only its root.

Records are appended, two a sealed round: u32 LE length, kind, seal, data, and the BLAKE3 of these three. The file is
written anew when more than half of it is no longer kept, or when the chain was left for another one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from protocols.canonical import pack, unpack
from protocols.chain_payloads import MAX_PROOF, Link, read_link
from protocols.errors import EnvironmentFault, RemoteError
from protocols.ids import HASH_BYTES, Hash, digest
from protocols.messages import MAX_STATEMENT, Seal
from protocols.round.chain import Head
from protocols.round.links import Image, Milestone
from protocols.round.walking import is_final, open_seal, walk
from protocols.shapes import data, list_of
from protocols.table import genesis

from .paths import write_safely

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from protocols.ids import PeerId
    from protocols.statements import Scope, Statement

ZERO, ROOT, LINK, MILESTONE, FINAL = b"Z", b"R", b"L", b"M", b"F"
FILE_BYTES = 256 << 20
"""A larger file is none of ours: 300 seals of 96 voters are 25 MB."""
DISK = "this disk"
_READYS = list_of(data(MAX_STATEMENT), MAX_PROOF)
_FRAME = 4 + 1 + HASH_BYTES + HASH_BYTES

Key = tuple[bytes, Hash]
"""Kind of a record, and the seal that it is about."""
Content = Head | Milestone | tuple["Statement", ...]


@dataclass
class ChainFile:
    """``chain`` and ``followed`` in the folder of a run and cell. Calls may block on the disk, and come in order."""

    folder: Path
    scope: Scope
    warnings: list[str] = field(default_factory=list)
    _written: dict[Key, int] = field(default_factory=dict)
    """Records in the file and their bytes, in order."""
    _sound: bool = False
    """Whether the file is known to hold just these."""

    @property
    def path(self) -> Path:
        """Where the chain is."""
        return self.folder / "chain"

    @property
    def followed_path(self) -> Path:
        """Where the seal is that a person chose."""
        return self.folder / "followed"

    def save(self, image: Image) -> None:
        """Write what is new of a chain, or all of it where the file holds another one. Raises EnvironmentFault."""
        wanted = dict(self._records(image))
        last = next((key for key in reversed(self._written) if key[0] in (LINK, ROOT)), None)
        stale = sum(size for key, size in self._written.items() if key not in wanted)
        live = sum(size for key, size in self._written.items() if key in wanted)
        try:
            rooted = all(key in wanted for key in self._written if key[0] == ROOT)
            if not self._sound or not rooted or last not in wanted or stale > live:
                self._rewrite(image)
            else:
                self._append(wanted)
        except OSError as error:
            self._sound = False
            raise EnvironmentFault(
                f"cannot write {self.path}: {error.strerror}", remedy="free some disk space: it is tried again"
            ) from error

    def load(self, founders: Iterable[PeerId]) -> Image | None:
        """What was saved, checked as if a stranger had shown it; None where there is nothing or it does not hold.

        ``founders`` are the manifest's. Says in ``warnings`` what it passed over.
        """
        try:
            with self.path.open("rb") as file:
                raw = file.read(min(FILE_BYTES, os.fstat(file.fileno()).st_size) + 1)  # as much is set aside at once
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(str(error.strerror))
            return None
        try:
            records, self._sound = _records_of(raw)
            image = _checked(records, self.scope, founders)
        except (ValueError, RemoteError) as error:
            self._sound = False
            self._warn(error.text if isinstance(error, RemoteError) else str(error))
            return None
        self._written = {key: len(payload) + _FRAME for key, payload in records.items()}
        return image

    def save_followed(self, seal: Hash, link: bytes) -> None:
        """Keep the seal that a person chose, so that a restart does not undo it. Raises EnvironmentFault."""
        try:
            write_safely(self.followed_path, _framed((ROOT, seal), link))
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {self.followed_path}: {error.strerror}", remedy="free some disk space, and choose again"
            ) from error

    def forget_followed(self) -> None:
        """The choice is reached: the checkpoint holds it. Raises EnvironmentFault."""
        try:
            self.followed_path.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot remove {self.followed_path}: {error.strerror}", remedy="remove it before the next start"
            ) from error

    def followed(self) -> Head | None:
        """The seal that a person chose last, if any; says in ``warnings`` where it is damaged."""
        try:
            raw = self.followed_path.read_bytes()
        except OSError:
            return None
        try:
            (((_, seal), payload),) = _records_of(raw)[0].items()
            return open_seal(self.scope, seal, read_link(payload, self.scope, sender=DISK), sender=DISK)
        except (ValueError, RemoteError) as error:
            self.warnings.append(f"{self.followed_path} is damaged ({error}): choose again with `murmur run follow`")
            return None

    def _warn(self, why: str) -> None:
        self.warnings.append(f"{self.path} is damaged ({why}): neighbours are asked for the history before this start")

    def _records(self, image: Image) -> Iterator[tuple[Key, Content | None]]:
        """What has to be in the file, in its order. A milestone that stands there as a link needs no other record."""
        if image.zero is not None:
            yield (ZERO, image.zero), None
        root, *links = image.heads
        if root.proposal is not None:
            yield (ROOT, root.seal), root
        among = {root.seal, *(each.seal for each in links)}
        for each in image.milestones:
            if each.seal not in among:
                yield (LINK if (LINK, each.seal) in self._written else MILESTONE, each.seal), each
        for head in links:
            yield (LINK, head.seal), head
        if image.final is not None and image.proof:
            yield (FINAL, image.final), image.proof

    def _rewrite(self, image: Image) -> None:
        self._written.clear()
        framed = {key: _framed(key, _encode(what)) for key, what in self._records(image)}
        write_safely(self.path, b"".join(framed.values()))
        self._written, self._sound = {key: len(raw) for key, raw in framed.items()}, True

    def _append(self, wanted: Mapping[Key, Content | None]) -> None:
        framed = {key: _framed(key, _encode(what)) for key, what in wanted.items() if key not in self._written}
        if framed:
            self._sound = False  # until all of it is there
            with self.path.open("ab") as file:
                file.write(b"".join(framed.values()))
                file.flush()
                os.fsync(file.fileno())
            self._written |= {key: len(raw) for key, raw in framed.items()}
            self._sound = True


def _encode(what: Content | None) -> bytes:
    if isinstance(what, Head):
        assert what.proposal is not None
        return Link(what.proposal, what.votes, what.table).encode()
    if isinstance(what, Milestone):
        return what.link
    return b"" if what is None else pack([each.encode() for each in what])


def _framed(key: Key, payload: bytes) -> bytes:
    kind, seal = key
    return len(payload).to_bytes(4, "little") + kind + seal + payload + digest(kind, seal, payload)


def _records_of(raw: bytes) -> tuple[dict[Key, bytes], bool]:
    """The records in order, and whether they are all: a crash may cut the last one short. Raises ValueError."""
    if len(raw) > FILE_BYTES:
        raise ValueError(f"more than {FILE_BYTES >> 20} MiB")
    found: dict[Key, bytes] = {}
    view, at = memoryview(raw), 0
    while len(raw) - at >= _FRAME:
        size = int.from_bytes(view[at : at + 4], "little")
        if len(raw) - at < size + _FRAME:
            break
        kind, seal = bytes(view[at + 4 : at + 5]), Hash(bytes(view[at + 5 : at + 5 + HASH_BYTES]))
        payload, end = bytes(view[at + 5 + HASH_BYTES : at + _FRAME - HASH_BYTES + size]), at + _FRAME + size
        if digest(kind, seal, payload) != bytes(view[end - HASH_BYTES : end]):
            raise ValueError(f"the record at byte {at} is not what was written")
        found[kind, seal] = payload
        at = end
    return found, at == len(raw)


def _checked(records: Mapping[Key, bytes], scope: Scope, founders: Iterable[PeerId]) -> Image:
    """The chain that the records make; raises ValueError or RemoteError where they make none."""

    def read(kind: bytes) -> list[tuple[Hash, Link]]:
        raw = ((seal, payload) for (each, seal), payload in records.items() if each == kind)
        return [(seal, read_link(payload, scope, sender=DISK)) for seal, payload in raw]

    zeros = [seal for kind, seal in records if kind == ZERO]
    roots = [replace(open_seal(scope, seal, link, sender=DISK), votes=link.votes) for seal, link in read(ROOT)]
    roots += [Head(seal, 0, 0, genesis(founders, seal), None, ()) for seal in zeros if not roots]
    if len(roots) != 1:
        raise ValueError("it does not say where it begins")
    links = sorted((link for _, link in read(LINK)), key=_round)
    branch = walk(scope, roots[0], links, sender=DISK)
    milestones = []
    for seal, link in sorted(read(MILESTONE), key=lambda each: _round(each[1])):
        head = open_seal(scope, seal, link, sender=DISK)
        milestones.append(Milestone(seal, head.round, head.table.voters, records[MILESTONE, seal]))
    final, proof = _final(records, branch.heads, scope)
    return Image((roots[0], *branch.heads), tuple(milestones), final, proof, next(iter(zeros), None))


def _final(
    records: Mapping[Key, bytes], heads: Sequence[Head], scope: Scope
) -> tuple[Hash | None, tuple[Statement, ...]]:
    """The newest seal that is shown final, with the readys that show it."""
    for head in reversed(heads):
        if (FINAL, head.seal) in records:
            encoded = _READYS(unpack(records[FINAL, head.seal], items=MAX_PROOF))
            proof = tuple(scope.decode(each, sender=DISK) for each in encoded)
            if is_final(head, proof):
                return head.seal, proof
    return None, ()


def _round(link: Link) -> int:
    body = link.proposal.body
    return body.round if isinstance(body, Seal) else 0
