"""``murmur run succeed``: a new run that begins with the last sealed state of an old one.

A run whose founders are gone for good, or that has had its rounds, goes on this way (protocol.md 6).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_flags import Commands, add_methods, at_least, common
from .paths import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import PeerId
    from protocols.manifest import Manifest, Members, Start


def add(verbs: Commands, write: Callable[[Path | None, str], None]) -> None:
    """Put ``succeed`` among the verbs of ``run``; ``write`` takes the manifest's text."""
    about = "write the manifest of a new run that goes on from an old one's last sealed state in this home"
    verb = verbs.add_parser("succeed", help=about, description=about, parents=[common("home")], allow_abbrev=False)
    flag = verb.add_argument
    flag("old", metavar="OLD", help="the old run: the start of its id, or its manifest")
    flag("--name", help="the new run's name; what is left out here and below stays as it was")
    flag("--seed", type=at_least(0), metavar="S", help="which data is drawn derives from it")
    flag("--rounds", type=at_least(0), metavar="R", help="rounds of the new run; 0 = open end")
    flag("--steps", type=at_least(1), metavar="H", help="inner steps of a round")
    add_methods(verb)
    flag("--open", action="store_true", help="let strangers enter")
    flag("--probation", type=at_least(0), metavar="N", help="sealed commits until a newcomer votes")
    flag("--allow", action="append", default=[], metavar="ID", help="private: only founders and this key; repeatable")
    flag(
        "--founder",
        action="append",
        default=[],
        metavar="ID",
        help="another founder beside this home's key; repeatable",
    )
    flag("-o", "--output", type=Path, metavar="FILE", help="write to FILE, not to stdout")
    verb.set_defaults(command=lambda arguments: _succeed(arguments, write))


def _succeed(arguments: dict[str, Any], write: Callable[[Path | None, str], None]) -> int:
    from protocols.ids import PeerId
    from protocols.manifest import render, run_id, sign
    from protocols.manifest_text import parse

    from .blobs import BlobStore
    from .identity import Identity
    from .start_state import keep_state
    from .stored import newest, stored_run

    home = Home(arguments["home"])
    home.create()
    old, store = stored_run(home, arguments["old"])
    checkpoint = newest(store)
    identity = Identity.load_or_create(home.key)
    founders = tuple(dict.fromkeys([identity.peer, *map(PeerId, arguments["founder"])]))
    state = (checkpoint.params, checkpoint.momentum)
    start = keep_state(BlobStore(home.blobs), run_id(old), checkpoint.head, state)
    manifest = parse(render(successor(old, start, founders, arguments)))  # says what is not allowed
    write(arguments["output"], render(sign(manifest, identity.peer, identity.sign)))
    print(
        f"it begins with round {start.round} of run {start.run[:12]}, kept in this home for the others", file=sys.stderr
    )
    return 0


def successor(old: Manifest, start: Start, founders: tuple[PeerId, ...], changes: dict[str, Any]) -> Manifest:
    """The unsigned manifest of a run that begins from ``start``; ``changes`` are the flags above, None: as before."""
    given = {name: value for name, value in changes.items() if value is not None}
    window = replace(old.round, steps=given["steps"], seconds=None) if "steps" in given else old.round
    named = {name: given[name] for name in ("name", "seed", "rounds") if name in given}
    return replace(
        old,
        run=replace(old.run, **named),
        round=window,
        codec=replace(old.codec, update=given.get("codec", old.codec.update)),
        rule=replace(old.rule, name=given.get("rule", old.rule.name)),
        members=_members(old.members, founders, given),
        start=start,
        signature=None,
    )


def _members(old: Members, founders: tuple[PeerId, ...], given: dict[str, Any]) -> Members:
    """Who was let into a private run, its founders too, still is, unless a list is given or the run is opened."""
    kept = tuple(each for each in (*old.founders, *(old.allow or ())) if each not in founders)
    still = (kept or founders) if old.allow is not None and not given["open"] else ()
    allow = tuple(dict.fromkeys(given["allow"])) or still
    probation = given.get("probation", old.probation)
    is_open = given["open"] or (old.open and not allow)
    return replace(old, founders=founders, open=is_open, probation=probation, allow=allow or None)
