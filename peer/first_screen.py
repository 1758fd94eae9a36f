"""The first lines of ``murmur up``: who this is, what is trained and where it stands, each by a fact. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.ids import PeerId, short

if TYPE_CHECKING:
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


def run(manifest: Manifest, values: int, *, alone: bool, embedded: bool) -> list[Item]:
    """What is trained, a model of ``values`` parameters, and on what. ``embedded``: on the built-in corpus."""
    founders = len(manifest.members.founders)
    members = f"{founders} founder{'s' * (founders > 1)}"
    shards = manifest.data.shards
    size = sum(each.bytes for each in shards)
    items: list[Item] = [
        ("ok", "model", f"{manifest.model.kind} {manifest.model.size}, {values:,} parameters, {members}"),
        (
            "ok",
            "data",
            f"{manifest.data.name}, {len(shards)} shard{'s' * (len(shards) > 1)}, {size / 1e6:.1f} MB"
            + (", built in: nothing to download" if embedded else ""),
        ),
    ]
    if embedded:
        lines = ", ".join(f"{name} {value:.2f}" for name, value in REFERENCES[1:])
        items.append(("note", "to beat", f"{lines} (held-out nats per byte)"))
    if founders < 4 and not alone:
        items.append(("note", "members", "fewer than four: no liar among them is tolerated"))
    return items


def network(status: st.Status, *, alone: bool, others: bool) -> Item:
    """Whether anybody is there. ``others``: the run has more members than this peer."""
    if alone:
        return "note", "network", "none: --alone never looks for peers"
    ports = sorted({part for address in status.reach.addresses for part in _ports(address)})
    listens = f"listens on port {', '.join(ports)}" if ports else "does not listen yet"
    answered = sum(seed.state == "ok" for seed in status.seeds)
    if status.seeds and not answered:
        several = len(status.seeds) > 1
        tried = f"none of {len(status.seeds)} addresses answers yet" if several else "the address does not answer yet"
        return "warn", "network", f"{listens}; {tried}, and is tried on: `murmur status` says why"
    if status.seeds:
        return "ok", "network", f"{listens}; joined through {answered} of {len(status.seeds)} addresses"
    alone_yet = "looks for the other members" if others else "nobody else yet: trains alone until others join"
    return "ok", "network", f"{listens}; {alone_yet}; `murmur invite` prints a line for them"


def _ports(address: str) -> list[str]:
    parts = address.split("/")
    return [parts[i + 1] for i in range(len(parts) - 1) if parts[i] == "tcp"]


def guest(threads: int, cores: int, blob_cap: int) -> list[Item]:
    """What this machine gives, and how to have it back."""
    return [
        (
            "note",
            "limits",
            f"{threads} of {cores} cores, after everything else on this machine; "
            f"at most {blob_cap / 1e9:.0f} GB of disk for data",
        ),
        ("note", "pause", "`murmur pause --for 1h`, `murmur resume`; `murmur finish` ends after a round"),
        ("note", "stop", "Ctrl-C, or `murmur stop`; what is sealed stays"),
    ]
