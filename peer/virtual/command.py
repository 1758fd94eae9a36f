"""``murmur swarm --virtual``: the swarm in this process, its report and its checks (contracts.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError
from protocols.ids import short

from ..exits import Exit
from ..swarm.output import Output
from .faults import Faults
from .invariants import Violation
from .plan import Plan
from .trace import Trace
from .world import Outcome, World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from protocols.ids import PeerId

    from ..options import SwarmOptions

MOST_VOID = 0.1
"""Share of the rounds that may be void."""
RULES = (
    "final_conflicts", "no_double_signature", "hash_recomputed", "view_grows", "known_parent", "void_keeps_state",
    "drift_kept", "memory_bounded", "one_window", "time_goes_on",
)  # fmt: skip
"""What a violation names."""
IDLE = ("loss_falls", "exit_codes", "no_orphans", "no_honest_banned")
"""Checks of every swarm's report that have nothing to look at here."""
NOTHING = "does not apply: nothing is trained, no process is started and nobody is banned in a virtual swarm"


def run(options: SwarmOptions) -> int:
    """The command: 0 only if every check holds. Raises ConfigError."""
    refused = [name for name in ("size", "steps", "codec") if getattr(options, name) is not None]
    if refused:
        raise ConfigError(f"--{refused[0]} has no meaning in a virtual swarm", remedy="leave it out")
    output = Output(options.json)
    world = _world(options)
    output.say(f"a virtual swarm: {options.peers} peers, {options.rounds} rounds, seed {options.seed}")
    violation = None
    try:
        outcome = world.run(options.timeout)
    except Violation as error:
        violation, outcome = error, world.outcome()
    document = _document(options, outcome, violation)
    _tell(outcome, document, output.say)
    if options.trace is not None:
        _write_trace(options.trace, world, document)
    output.write(document)
    return Exit.DONE if document["ok"] else Exit.FAILED


def _world(options: SwarmOptions) -> World:
    faults = Faults(
        loss=options.loss, deaths=options.deaths, joins=options.joins, partitions=options.partition,
        frozen=options.frozen, slow=options.slow, kills=options.kill, join_at=options.join_at,
    )  # fmt: skip
    plan = Plan()
    if options.rule is not None:
        plan = replace(plan, setting=replace(plan.setting, rule=options.rule))
    world = World(options.seed, options.peers, options.rounds, faults, plan=plan)
    world.trace = Trace(keep=options.trace is not None)
    return world


def _document(options: SwarmOptions, outcome: Outcome, violation: Violation | None) -> dict[str, Any]:
    found = checks(outcome, violation)
    setting = outcome.world.plan.setting
    return {
        "schema": 1,
        "ok": all(check["ok"] for check in found),
        "config": {
            "run_id": outcome.world.plan.scope.run.hex(),
            "peers": options.peers,
            "drivers": 0,
            "rounds": options.rounds,
            "seed": options.seed,
            "size": None,
            "steps": None,
            "codec": setting.update_codec,
            "result_codec": setting.result_codec,
            "rule": setting.rule,
            "kill": [str(kill) for kill in options.kill],
            "join_at": list(options.join_at),
            "attack": [],
            "from": 2,
            "virtual": True,
            "loss": options.loss,
            "deaths": options.deaths,
            "joins": options.joins,
            "partition": options.partition,
            "frozen": options.frozen,
            "slow": options.slow,
            "versions": {name: version(name) for name in ("murmuration", "numpy")},
        },
        "checks": found,
        "peers": _peers(outcome),
        "rounds": outcome.world.chronicle.rounds(outcome.chain),
        "baseline": {"alone": None, "adamw": None},
        "trace": outcome.trace,
        "virtual_seconds": outcome.seconds,
        "peaks": dict(sorted(outcome.world.rules.peaks.items())),
    }


def checks(outcome: Outcome, violation: Violation | None) -> list[dict[str, Any]]:
    """Every check with its verdict and what it saw; the command that replays it where it fails."""
    broken = {violation.check: str(violation)} if violation is not None else {}
    void = sum(link.void for link in outcome.chain)
    replay = f"replay: {outcome.world.command}"
    found = {
        "rounds_sealed": (outcome.ok, f"{outcome.detail}\n{replay}"),
        "one_hash_per_round": _one_hash(outcome),
        "void_rounds": (outcome.void_share <= MOST_VOID, f"{void} of {len(outcome.chain)}; {replay}"),
    }
    out = [_check(name, ok=ok, detail="" if ok else detail) for name, (ok, detail) in found.items()]
    out += [_check(name, ok=name not in broken, detail=broken.get(name, "")) for name in RULES]
    return out + [_check(name, ok=True, detail=NOTHING) for name in IDLE]


def _one_hash(outcome: Outcome) -> tuple[bool, str]:
    """All heads on the chain, and on the last state."""
    chain = {link.seal: link for link in outcome.chain}
    astray = [each for each in outcome.peers if each.head.proposal is not None and each.head.seal not in chain]
    states = {outcome.world.rules.links[each.head.seal].state for each in outcome.peers}
    detail = f"{len(astray)} peers on another chain, {len(states)} states at the end; replay: {outcome.world.command}"
    return not astray and len(states) == 1, detail


def _check(name: str, *, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}


def _peers(outcome: Outcome) -> list[dict[str, Any]]:
    world = outcome.world
    adopted: dict[str, list[int]] = {}
    for entry in world.chronicle.rounds(outcome.chain)[1:]:
        for peer in entry["state_hashes"]:
            adopted.setdefault(peer, []).append(entry["round"])
    deaths = world.lots.taken()
    return [
        {
            "id": name,
            "index": world.number(name),
            "kind": "honest" if peer.honest else "attack",
            "cell": "model",
            "exit_code": 0 if peer.alive else None,
            "killed": _killed(world, deaths, name),
            "first_round": min(adopted.get(name, [0])) or None,
            "last_round": max(adopted.get(name, [0])) or None,
            "rss_peak": None,
            "p2pd_bytes": None,
            "banned_in": None,
        }
        for name, peer in world.peers.items()
    ]


def _killed(world: World, deaths: dict[int, int], name: PeerId) -> str | None:
    if world.peers[name].alive:
        return None
    number = deaths.get(world.number(name))
    return "by chance" if number is None else str(world.faults.kills[number])


def _tell(outcome: Outcome, document: dict[str, Any], say: Callable[[str], None]) -> None:
    for entry in document["rounds"][1:]:
        what = "void: " + (entry["reason"] or "") if entry["void"] else f"{len(entry['contributors'])} contributors"
        say(
            f"round {entry['round']:>3}   view {entry['view']:>3}   seal {entry['seal'][:8]} "
            f"on {len(entry['state_hashes'])}   coordinator {short(entry['coordinator'])}   {what}"
        )
    for check in document["checks"]:
        if not check["ok"]:
            say(f"  ! {check['name']}: {check['detail']}")
    made = [check for check in document["checks"] if check["name"] not in IDLE]
    held = sum(check["ok"] for check in made)
    say(
        f"{'ok' if document['ok'] else 'FAILED'}: {held} of {len(made)} checks hold, "
        f"{outcome.seconds:.0f} virtual seconds, trace {outcome.trace[:16]}"
    )


def _write_trace(folder: Path, world: World, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.txt").write_text("\n".join(world.trace.lines or []) + "\n")
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")
