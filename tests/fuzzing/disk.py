"""Decoders of what lies in a home, and of what this machine's own processes say: a crash or an editor was at it."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from dht import leftovers
from peer import channel
from peer.address_book import FILE_BYTES, AddressBook
from peer.chain_file import ChainFile
from peer.client import ANSWER_LIMIT, _answer, address, shown
from peer.exits import NoDaemon, Refused
from peer.export import export
from peer.export_check import check
from peer.identity import Identity
from peer.journal import Journal
from peer.part_file import PartFile
from peer.paths import Home
from peer.state import StateStore
from peer.status import Status, to_json
from peer.training import DataConfig, TrainConfig, config_from_plain
from protocols.canonical import decode_bounded, pack, unpack
from protocols.chain_payloads import Link
from protocols.errors import ConfigError, EnvironmentFault, LocalError, RemoteError
from protocols.ids import PeerId, digest
from protocols.messages import Ready, Vote
from protocols.round.chain import head_from_wire, head_to_wire
from protocols.round.links import Image
from protocols.state_payloads import StateChunk
from tests.peer.sealed_home import sealed_home

from . import examples as ex
from .decoder import KIB, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable

ME = ex.ME.peer


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="murmur-fuzz-")


def _path(name: str) -> Path:
    return Path(_folder().name) / name


def _written(name: str, run: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A decoder of the file ``name``, which gets the bytes before each call."""
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)

    def decode(raw: bytes) -> object:
        path.write_bytes(raw)
        return run(path)

    return decode


def files() -> list[Decoder]:
    """What lies in a home: a crash, a full disk or an editor may have been at it."""
    store = StateStore(_path("run"), ex.SCOPE, ex.VALUES)
    store.save(ex.checkpoint())
    number = ex.checkpoint().head.round
    saved = (_path("run") / f"round-{number:08d}.safetensors").read_bytes()
    store.save_pending(ex.ONE, 4, ex.vector(), ex.bodies()[0].legs)  # type: ignore[attr-defined]
    pending = next(_path("run").glob("pending-*")).read_bytes()
    head = pack(head_to_wire(ex.checkpoint().head))
    key = _path("identity.key")
    Identity.from_seed(b"k" * 32).save(key)
    book = AddressBook(_path("peers.json"))
    book.met(PeerId(ME), [f"/ip4/203.0.113.5/tcp/4001/p2p/{ME}"], member=True, now=1.7e9)
    book.save()
    exported, wrong = _an_export(), (LocalError, ConfigError)
    seal, model = (_written(f"export/{name}", _exported) for name in ("seal.json", "model.safetensors"))
    log = b'{"round": 1, "tokens": {"a": 5}}\n{"round": 2}\n'
    return [
        Decoder("checkpoint", _written("run/round-00000003.safetensors", lambda _: store.read(3)), (ValueError,),
                (saved,), 1 << 20, 40),
        Decoder("head of a checkpoint", lambda raw: head_from_wire(unpack(raw), ex.SCOPE), (ValueError, RemoteError),
                (head,), 1 << 20, 80, 1 << 20),
        Decoder("pending update", _written(f"run/pending-00000004-{ex.ONE.hex()[:16]}.safetensors",
                                           lambda _: store.load_pending(ex.ONE)), (), (pending,), 1 << 20, 40),
        # Line by line, and each by itself: the time is what its lines take, some 5 µs each.
        Decoder("round log", _written("run/rounds.jsonl", lambda _: list(store.rounds())), (), (log,), 32 * KIB, 80),
        Decoder("journal", _written("journal", _journal), (EnvironmentFault,), (_written_journal(),), 1 << 20, 80),
        Decoder("record of a journal", _written_record, (EnvironmentFault,), _journal_records(), 1 << 16, 80),
        Decoder("key", _written("other.key", Identity.load), (EnvironmentFault,), (key.read_bytes(),), 4096),
        Decoder("address book", _written("book.json", AddressBook), (), (_path("peers.json").read_bytes(),),
                FILE_BYTES + 64, 80),
        Decoder("chain file", _written("chain-run/chain", _chain), (), (_written_chain(),), 1 << 20, 80),
        Decoder("record of a chain file", _chain_record, (), _chain_records(), 1 << 20, 80),
        Decoder("followed seal", _written("chain-run/followed", _chain), (), (_written_followed(),), 1 << 20, 80),
        Decoder("chunks kept", _written(f"parts/state-{ex.ONE.hex()}.part", _chunks), (), (_written_chunks(),),
                1 << 20, 80),
        Decoder("seal of an export", seal, wrong, (exported["seal.json"],), 1 << 20, 80, 1 << 21),
        Decoder("model of an export", model, wrong, (exported["model.safetensors"],), 1 << 20, 80, 1 << 21),
        Decoder("trace of p2pd", _written("p2pd.pid", _trace), (), (_written_trace(),), 64 * KIB, 80),
    ]  # fmt: skip


def _chain_file() -> ChainFile:
    return ChainFile(_path("chain-run"), ex.SCOPE)


def _chain(_: Path) -> object:
    """Both files that lie there; what does not hold becomes a warning."""
    file = _chain_file()
    return file.load([each.peer for each in ex.KEYS]), file.followed(), file.warnings


@cache
def _written_chain() -> bytes:
    heads = ex.heads()
    readys = tuple(ex.say(Ready(4, heads[3].seal, 3, (), b"", 0, ()), each) for each in ex.KEYS)
    _chain_file().save(Image(heads, (), heads[3].seal, readys, heads[0].seal))
    image = _chain_file().load([each.peer for each in ex.KEYS])
    assert image is not None and len(image.heads) == 4 and image.final == heads[3].seal
    return _path("chain-run/chain").read_bytes()


@cache
def _written_followed() -> bytes:
    head = ex.heads()[2]
    assert head.proposal is not None
    _path("chain-run").mkdir(exist_ok=True)
    _chain_file().save_followed(head.seal, Link(head.proposal, head.votes, head.table).encode())
    assert _chain_file().followed() is not None
    return _path("chain-run/followed").read_bytes()


def _chain_records() -> tuple[bytes, ...]:
    """Kind, seal and payload of each record, without what guards them."""
    data, found = _written_chain(), []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[4 : 37 + size])
        data = data[69 + size :]
    return tuple(found)


def _chain_record(raw: bytes) -> object:
    """A record whose check holds, whatever is in it, behind the one of seal 0."""
    kind, seal, payload = raw[:1].ljust(1), raw[1:33].ljust(32), raw[33:]
    framed = len(payload).to_bytes(4, "little") + kind + seal + payload + digest(kind, seal, payload)
    _path("chain-run").mkdir(exist_ok=True)
    _path("chain-run/chain").write_bytes(_written_chain()[:69] + framed)
    return _chain(_path("chain-run"))


def _chunks(path: Path) -> object:
    found = PartFile(path.parent).read(ex.ONE)
    return [bytes(chunk.data) for chunk in found]


@cache
def _written_chunks() -> bytes:
    file = PartFile(_path("parts"))
    for index in range(3):
        file.append(StateChunk(ex.ONE, index, (ex.TWO,), bytes(100)))
    return _path(f"parts/state-{ex.ONE.hex()}.part").read_bytes()


@cache
def _an_export() -> dict[str, bytes]:
    made = sealed_home(_path("exporting"), name="home")
    export(made.manifest, made.store, _path("export"))
    return {path.name: path.read_bytes() for path in _path("export").iterdir()}


def _exported(path: Path) -> object:
    """Check the folder, in which everything but this file is as it was."""
    for name in ("seal.json", "model.safetensors"):
        if name != path.name and (path.parent / name).read_bytes() != _an_export()[name]:
            (path.parent / name).write_bytes(_an_export()[name])
    return check(path.parent)


def _trace(path: Path) -> object:
    trace = leftovers._read(path)
    return trace and (leftovers._find(trace.pid, trace.started), leftovers._find(trace.owner, trace.owner_started))


def _written_trace() -> bytes:
    trace = leftovers.Trace(2**30, 1.7e9, "/usr/bin/p2pd", 2**30 + 1, 1.7e9, "/tmp/none")
    return json.dumps(dataclasses.asdict(trace)).encode()


def _journal(path: Path) -> object:
    """Open it and use it: what it took in must not break later."""
    journal = Journal(path, ex.SCOPE, PeerId(ME), ex.ME.sign)
    try:
        journal.forget_before(5)
        return journal.signed_view
    finally:
        journal.close()


@cache
def _written_journal() -> bytes:
    path = _path("example-journal")
    journal = Journal(path, ex.SCOPE, PeerId(ME), ex.ME.sign)
    for body in ex.bodies():
        journal.sign(body, 3)
    journal.sign(Vote(8, ex.TWO), 4)
    journal.close()
    return path.read_bytes()


def _journal_records() -> tuple[bytes, ...]:
    """The msgpack of each record, and of one of what was forgotten."""
    data, found = _written_journal(), []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[12 : 12 + size])
        data = data[20 + size :]
    gone = pack({"oldest": 2, "used": [[ex.ONE, 3]], "views": {"ready": 7}})
    return (*found, msgpack.packb([b"", 4, gone, b""]))


def _written_record(raw: bytes) -> object:
    """A record whose checks hold, whatever is in it."""
    length = len(raw).to_bytes(4, "little")
    path = _path("journal-of-one")
    path.write_bytes(length + digest(length)[:8] + raw + digest(length, raw)[:8])
    return _journal(path)


def processes() -> list[Decoder]:
    """What the trainer, the daemon's interface, and a leftover of another daemon say."""
    messages = (
        channel.encode("progress", id=1, step=3, loss=2.5),
        channel.encode("done", id=1, steps=5, tokens=10, loss=2.5, last_loss=2.25, seconds=1.0),
        channel.encode("train", id=1, parent=ex.ONE, peer=ME, steps=5, seconds=None, first_step=0),
    )
    config = TrainConfig(DataConfig(ex.manifests()[0].data.shards, name="plays", folder="/x"), size="nano", context=32)
    packed = msgpack.packb(config.to_plain())
    home = Home(_path("home"))
    home.create()
    unreadable, refusal = (NoDaemon, EnvironmentFault), b'{"schema": 1, "error": {"text": "no"}}'
    api = b'{"schema": 1, "port": 4001, "token": "abc", "pid": 12}'
    status = to_json(Status(version="0.1.0", protocol=1, peer=ME, since=5.0))

    def answer(raw: bytes) -> object:
        return shown(_answer(home, 200, raw))

    def refused(raw: bytes) -> object:
        return _answer(home, 403, raw)

    return [
        Decoder("trainer channel", channel.decode, (LocalError,), tuple(e[4:] for e in messages), channel.LIMIT, 80),
        Decoder("training configuration", _configured, (ConfigError,), (packed,), 64 * KIB, 80),
        Decoder("api.json", _written("home/api.json", lambda _: address(home)), unreadable, (api,), 64 * KIB, 80),
        Decoder("refusal", refused, (NoDaemon, Refused), (refusal,), ANSWER_LIMIT, 80),
        Decoder("status", answer, (NoDaemon, Refused, LocalError), (json.dumps(status).encode(),), ANSWER_LIMIT, 80),
    ]


def _configured(raw: bytes) -> object:
    try:
        plain: Any = decode_bounded(raw, items=4096, total=1 << 16)
    except ValueError as error:  # the channel refuses such bytes before
        raise ConfigError("no message") from error
    return config_from_plain(plain)
