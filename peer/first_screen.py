"""The first lines of ``murmur up``: who this is, what is trained and where it stands, each by a fact. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.ids import PeerId, short

from .screen import ports

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.manifest import Manifest

    from . import status as st
    from .terminal import Mark

REFERENCES = (("uniform", 5.545), ("letters", 3.30), ("bigram", 2.47), ("trigram", 1.85))
"""What simple models reach on the embedded corpus, nats per byte (measured on all 38 plays)."""

Item = tuple["Mark", str, str]
"""Mark, label, text."""


def header(status: st.Status, name: str | None) -> str:
    """Version, run and protocol."""
    run = f"run {f'{name} ' if name else ''}({(status.run.id or '')[:12]})"
    return f"murmur {status.version}   {run}   protocol {status.protocol}"


def identity(status: st.Status, key: str, *, new: bool) -> Item:
    """Who this peer is, by the file of its key."""
    who = short(PeerId(status.peer))
    return "ok", "identity", f"new key {who}, saved in {key}; keep a copy of it" if new else f"{who}, key in {key}"


def run(manifest: Manifest, values: int, *, alone: bool, embedded: bool, here: bool = True) -> list[Item]:
    """What is trained, a model of ``values`` parameters, and on what.

    ``embedded``: on the built-in corpus, which is ``here``, or its package is missing.
    """
    founders = len(manifest.members.founders)
    members = f"{founders} founder{'s' * (founders > 1)}"
    shards = manifest.data.shards
    size = sum(each.bytes for each in shards)
    items: list[Item] = [
        ("ok", "model", f"{manifest.model.kind} {manifest.model.size}, {values:,} parameters, {members}"),
        (
            "ok" if here else "note",
            "data",
            f"{manifest.data.name}, {len(shards)} shard{'s' * (len(shards) > 1)}, {size / 1e6:.1f} MB"
            + (("", ", built in: nothing to download")[here] if embedded else ""),
        ),
    ]
    if embedded:
        lines = ", ".join(f"{name} {value:.2f}" for name, value in REFERENCES[1:])
        items.append(("note", "to beat", f"{lines} (held-out nats per byte)"))
    if founders < 4 and not alone:
        items.append(("note", "members", "with fewer than four, a liar among them can spoil the model"))
    return items


def network(status: st.Status, *, alone: bool, others: bool) -> Item:
    """Whether anybody is there. ``others``: the run has more members than this peer."""
    if alone:
        return "note", "network", "none: --alone never looks for peers"
    found = ports(status.reach.addresses)
    listens = f"listens on port {', '.join(found)}" if found else "does not listen yet"
    answered = sum(seed.state == "ok" for seed in status.seeds)
    if status.seeds and not answered:
        several = len(status.seeds) > 1
        tried = f"none of {len(status.seeds)} addresses answers yet" if several else "the address does not answer yet"
        return "warn", "network", f"{listens}; {tried}, and is tried on: `murmur status` says why"
    if status.seeds:
        return "ok", "network", f"{listens}; joined through {answered} of {len(status.seeds)} addresses"
    alone_yet = "looks for the other members" if others else "nobody else yet: trains alone until others join"
    return "ok", "network", f"{listens}; {alone_yet}; `murmur invite` prints a line for them"


def trainer(device: str | None, length: str, memory: int) -> Item:
    """What trains, a window of that ``length`` at a time, and the ``memory`` of all processes together."""
    takes = f", about {memory / 1e9:.1f} GB of memory in all" if memory else ""
    return "ok", "trainer", f"ready on {device}{takes}: {length} a round, then a line for each sealed round"


def guest(threads: int, cores: int, blob_cap: int, *, name: str = "") -> list[Item]:
    """What this machine gives, and how to have it back. ``name``: what to type for ``murmur``, where it is not that."""
    items: list[Item] = [
        (
            "note",
            "limits",
            f"trains on {threads} of {cores} cores, after everything else on this machine; "
            f"at most {blob_cap / 1e9:g} GB of disk for data; none on memory and traffic",
        ),
        ("note", "pause", "`murmur pause --for 1h`, `murmur resume`; `murmur finish` ends after a round"),
        ("note", "stop", "Ctrl-C, or `murmur stop`; what is sealed stays"),
    ]
    return [*items, ("note", "murmur", f"in another terminal is {name}")] if name else items


def traffic(each_way: int) -> Item:
    """What a round with others costs at most, in bytes each way."""
    return "note", "traffic", f"with others about {each_way / 1e6:.1f} MB a round each way, and what newcomers load"


def callable_as(home: Path, usual: Path, found: str | None, program: str) -> str:
    """What to type for ``murmur`` in another terminal; empty: just that.

    ``home`` and the ``usual`` one; where a shell has ``found`` it on its path; the ``program`` that runs.
    """
    typed = "murmur" if found else program if program.endswith("/murmur") else "python -m peer"
    given = f"{typed} COMMAND --home {home}" if home != usual else typed
    return "" if given == "murmur" else f"`{given}`"
