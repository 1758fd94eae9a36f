"""The first lines of ``murmur up``: who this is, what is trained and where it stands, each by a fact. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.ids import PeerId, short

from .screen import ports

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.manifest import Manifest, Members

    from . import status as st
    from .terminal import Mark

REFERENCES = (("uniform", 5.545), ("letters", 3.30), ("bigram", 2.47), ("trigram", 1.85))
"""What simple models reach on the embedded corpus, nats per byte (measured on all 38 plays)."""

CLOSED = (
    "this run takes nobody else in: this machine follows it, and what it trains does not count",
    "ask for one made with `murmur run init --open`; `murmur stop` ends this",
)
"""Warning and remedy for who is no founder of a run that is not open."""

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


def run(manifest: Manifest, values: int, *, embedded: bool, here: bool = True) -> list[Item]:
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
        items.append(("note", "to beat", f"{lines} (held-out nats per byte, less is better)"))
    if (founders > 1 or manifest.members.open) and founders < 4:
        items.append(("note", "members", "with fewer than four, a liar among them can spoil the model"))
    return items


def newcomer(probation: int) -> Item:
    """What becomes of the work of who is no founder, after so many sealed rounds of ``probation``."""
    rounds = probation + 1
    return "note", "newcomer", f"votes, and its work counts, after {rounds} sealed round{'s' * (rounds > 1)} with it"


def network(status: st.Status, members: Members, *, alone: bool, found: bool) -> Item:
    """Whether anybody is there. ``found``: somebody of the run has answered, by whatever address."""
    if alone:
        return "note", "network", "none: --alone never looks for peers"
    listening = ports(status.reach.addresses)
    listens = f"listens on port {', '.join(listening)}" if listening else "does not listen yet"
    count, answered = len(status.seeds), sum(seed.state == "ok" for seed in status.seeds)
    if answered:
        return "ok", "network", f"{listens}; joined through {answered} of {count} addresses"
    if count and found:
        return "ok", "network", f"{listens}; others of the run answer"
    if count:
        errors = [seed.error for seed in status.seeds if seed.error]
        why = f" ({errors[0]})" if errors else ""
        tried = f"none of {count} addresses answers yet" if count > 1 else "the address does not answer yet"
        return "warn", "network", f"{listens}; {tried}{why}; it is tried again by itself"
    if len(members.founders) > 1 or members.open:
        return "ok", "network", f"{listens}; nobody else is here yet: `murmur invite` prints a line for others"
    return "ok", "network", f"{listens}; trains alone: `murmur run init --open` makes a run that others can join"


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
            f"trains on {threads} of {cores} cores, at the lowest priority: other programs go first; "
            f"at most {blob_cap / 1e9:g} GB of disk for data; no limit on memory and traffic",
        ),
        ("note", "pause", "`murmur pause --for 1h`, `murmur resume`; `murmur finish` ends after a round"),
        (
            "note",
            "stop",
            "Ctrl-C, or `murmur stop`, ends it within seconds; `murmur up` goes on after the last sealed round",
        ),
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
