"""The JSON report of a swarm and the checks it must pass (contracts.md). Pure: harvested values in, values out."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .plan import Kill

PHASES = ("train", "commit", "roster", "exchange", "reduce", "check", "seal", "apply")
SPREAD_PEERS, SPREAD_PARTS = 4, 12
"""From so many peers and parts on, the parts must be spread over at least three of them."""
JOIN_S = 120.0
"""From the start of a peer that joins to the first round in which its update counts."""
SLACK_BYTES = 1_000_000
"""What a process may receive in a round beyond parts and results."""


@dataclass
class Outcome:
    """All that the checks look at. Rounds are numbered from 1; round 0 is the state before training."""

    rounds_wanted: int
    peers: list[dict[str, Any]]
    logs: Mapping[str, Mapping[int, Mapping[str, Any]]]
    """Peer id → round → the daemon's own entry."""
    hashes: Mapping[int, Mapping[str, str | None]]
    """Round → peer id → state hash recomputed by the parent."""
    losses: Mapping[int, float]
    orphans: list[int] = field(default_factory=list)
    part_bytes: tuple[int, int] = (0, 0)
    """Encoded bytes of one part: of an update, of a result."""
    kills: tuple[Kill, ...] = ()

    @property
    def chain(self) -> dict[int, Mapping[str, Any]]:
        """Round → any one entry, in order."""
        numbers = sorted({number for log in self.logs.values() for number in log})
        return {number: witness([log[number] for log in self.logs.values() if number in log]) for number in numbers}

    @property
    def last(self) -> int | None:
        """The round with which as many were sealed as were asked for, void ones not counted; None: not so many."""
        sealed = [number for number, entry in self.chain.items() if not entry["void"]]
        return sealed[self.rounds_wanted - 1] if len(sealed) >= self.rounds_wanted else None

    @property
    def survivors(self) -> list[dict[str, Any]]:
        """The peers that no kill hit."""
        return [peer for peer in self.peers if peer["killed"] is None]


def witness(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of one round's entries, one of a peer that was there: whoever resynced knows the state only."""
    return next((entry for entry in entries if not entry["synced"]), entries[0])


def rounds(outcome: Outcome) -> list[dict[str, Any]]:
    """The report's ``rounds``: what the peers agree on once, what differs per peer by id."""
    out = [_round_zero(outcome)]
    for number in sorted(outcome.hashes):
        entries = {peer: log[number] for peer, log in outcome.logs.items() if number in log}
        if entries:
            out.append(_round(outcome, number, entries))
    return out


def _round_zero(outcome: Outcome) -> dict[str, Any]:
    return {"round": 0, "cell": "model", "held_out_loss": outcome.losses.get(0)}


def _round(outcome: Outcome, number: int, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    first = witness(list(entries.values()))
    every = entries.values()
    return {
        "round": number,
        "cell": "model",
        "void": first["void"],
        "reason": first["reason"],
        "final": any(entry["final"] for entry in every),
        "held_out_loss": outcome.losses.get(number),
        "coordinator": first["coordinator"],
        "contributors": first["contributors"],
        "weights": first["weights"],
        "tokens": first["tokens"],
        "reducers": {str(part): owner for part, owner in enumerate(first["reducers"])},
        "votes": max(entry["votes"] for entry in every),
        "view": first["view"],
        "certified": any(outcome.hashes[number].values()),  # reading a checkpoint verifies its certificate
        "seal": first["seal"],
        "state_hashes": {peer: found for peer, found in outcome.hashes[number].items() if found is not None},
        "bytes_sent": {peer: entry["bytes_sent"] for peer, entry in entries.items()},
        "bytes_received": {peer: entry["bytes_received"] for peer, entry in entries.items()},
        "payload_bytes": sum(entry["payload"][0] for entry in every),
        "payload_values": sum(entry["payload"][1] for entry in every),
        "seconds": _seconds(every),
        "verdicts": {peer: entry["verdict"] for peer, entry in entries.items()},
    }


def _seconds(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The slowest peer's time in each phase; ``check`` is 0 until results are checked."""
    out = dict.fromkeys(PHASES, 0.0)
    total = 0.0
    for entry in entries:
        total = max(total, sum(entry["seconds"].values()))
        for phase, seconds in entry["seconds"].items():
            out[phase] = max(out[phase], seconds)
    return {**out, "total": total}


def checks(outcome: Outcome) -> list[dict[str, Any]]:
    """Every check with its verdict and what it saw."""
    found = [
        _rounds_sealed(outcome),
        _void_rounds(outcome),
        _one_hash(outcome),
        _hash_recomputed(outcome),
        _loss_falls(outcome),
        _exit_codes(outcome),
        _check("no_orphans", [f"process {pid}" for pid in outcome.orphans]),
        _check("no_honest_banned", [p["id"] for p in outcome.peers if p["banned_in"] is not None]),
    ]
    if outcome.kills:
        found.append(_killed_as_planned(outcome))
    if any(peer.get("joined") for peer in outcome.peers):
        found.append(_joiners_contribute(outcome))
    parts = len(_sample(outcome).get("reducers", []))
    if len(outcome.peers) >= SPREAD_PEERS and parts >= SPREAD_PARTS:
        found.append(_reducers_spread(outcome))
    if len(outcome.peers) > 1:
        found.append(_traffic_bounded(outcome))
    return found


def baseline_checks(last: float | None, baseline: Mapping[str, float | None], peers: int) -> list[dict[str, Any]]:
    """The swarm against one peer alone (2 % better, with four or more peers) and plain AdamW at the same steps."""
    out = []
    for name, margin in (("alone", 0.98), ("adamw", 1.0)):
        reference = baseline[name]
        if reference is not None and last is not None and peers >= SPREAD_PEERS:
            wrong = [] if last <= margin * reference else [f"{last:.4f} against {reference:.4f}"]
            out.append(_check(f"below_{name}", wrong))
    return out


def _check(name: str, wrong: list[str]) -> dict[str, Any]:
    return {"name": name, "ok": not wrong, "detail": "; ".join(wrong[:8])}


def last_loss(outcome: Outcome) -> float | None:
    """The held-out loss after the last round that was asked for."""
    return outcome.losses.get(outcome.last) if outcome.last is not None else None


def _sample(outcome: Outcome) -> Mapping[str, Any]:
    """Any one entry of a round that is not void."""
    return next((entry for entry in outcome.chain.values() if not entry["void"]), {})


def _rounds_sealed(outcome: Outcome) -> dict[str, Any]:
    """Whoever was not killed ends with the round with which there are as many as were asked for."""
    wrong = [
        f"peer {peer['index']} ended at round {peer['last_round']}"
        for peer in outcome.survivors
        if outcome.last is None or peer["last_round"] != outcome.last
    ]
    return _check("rounds_sealed", wrong)


def _void_rounds(outcome: Outcome) -> dict[str, Any]:
    """At most one for each kill; before the first real round some peers may not be up yet."""
    begun = next((number for number, entry in outcome.chain.items() if not entry["void"]), 0)
    late = {number: entry for number, entry in outcome.chain.items() if number > begun}
    void = [f"round {number}: {entry['reason']}" for number, entry in late.items() if entry["void"]]
    return _check("void_rounds", void if len(void) > len(outcome.kills) else [])


def _exit_codes(outcome: Outcome) -> dict[str, Any]:
    """The killed died by SIGKILL, all others ended well."""
    wrong = [
        f"peer {peer['index']}: {peer['exit_code']}"
        for peer in outcome.peers
        if peer["exit_code"] != (0 if peer["killed"] is None else -signal.SIGKILL)
    ]
    return _check("exit_codes", wrong)


def _killed_as_planned(outcome: Outcome) -> dict[str, Any]:
    """Every kill hit as many as it was to, in the round that it names.

    The seal before may be lost as well: it was adopted, and death came before it was logged.
    """
    planned: Counter[str] = Counter()
    for kill in outcome.kills:
        planned[str(kill)] += kill.count
    rounds_of = {str(kill): kill.round for kill in outcome.kills}
    dead = [peer for peer in outcome.peers if peer["killed"] is not None]
    hit = Counter(peer["killed"] for peer in dead)
    wrong = [f"{text}: {hit[text]} of {count} peers" for text, count in planned.items() if hit[text] != count]
    wrong += [
        f"peer {peer['index']}, {peer['killed']}: died after round {peer['last_round']}"
        for peer in dead
        if rounds_of[peer["killed"]] - (peer["last_round"] or 0) not in (1, 2)
    ]
    return _check("killed_as_planned", wrong)


def _joiners_contribute(outcome: Outcome) -> dict[str, Any]:
    """Who joined with nothing but an invitation has the others' state, and its update counted within two minutes."""
    wrong = []
    for peer in outcome.survivors:
        joined = peer.get("joined")
        if joined and (joined["seconds"] is None or joined["seconds"] > JOIN_S):
            wrong.append(f"peer {peer['index']}: first contribution after {joined['seconds']} s")
        elif joined and not joined["momentum"]:
            wrong.append(f"peer {peer['index']}: no outer momentum")
    return _check("joiners_contribute", wrong)


def _one_hash(outcome: Outcome) -> dict[str, Any]:
    wrong = []
    for number in range(1, max(outcome.rounds_wanted, *outcome.chain, 0) + 1):
        seals = {log[number]["seal"] for log in outcome.logs.values() if number in log}
        states = {log[number]["state_hash"] for log in outcome.logs.values() if number in log}
        if len(seals) != 1 or len(states) != 1:
            wrong.append(f"round {number}: {len(seals)} seals, {len(states)} states")
    return _check("one_hash_per_round", wrong)


def _hash_recomputed(outcome: Outcome) -> dict[str, Any]:
    wrong = [
        f"round {number}, {peer}: {log[number]['state_hash'][:12]} is {str(outcome.hashes[number].get(peer))[:12]}"
        for peer, log in outcome.logs.items()
        for number in log
        if number in outcome.hashes and outcome.hashes[number].get(peer) != log[number]["state_hash"]
    ]
    return _check("hash_recomputed", wrong)


def _loss_falls(outcome: Outcome) -> dict[str, Any]:
    first, last = outcome.losses.get(0), last_loss(outcome)
    fell = first is not None and last is not None and last < first
    return _check("loss_falls", [] if fell else [f"from {first} to {last}"])


def _disturbed(outcome: Outcome) -> set[int]:
    """Rounds in which parts go to other owners, or once more, because of a kill: its own and the next."""
    return {number for kill in outcome.kills for number in (kill.round, kill.round + 1)}


def _reducers_spread(outcome: Outcome) -> dict[str, Any]:
    """At least three reducers in every round, none with more than two thirds of the parts; until peers are killed."""
    wrong = []
    end = min((kill.round for kill in outcome.kills), default=None)
    for number, entry in outcome.chain.items():
        if entry["void"] or (end is not None and number >= end):
            continue
        owned = Counter(entry["reducers"])
        if len(owned) < 3 or 3 * max(owned.values()) > 2 * len(entry["reducers"]):
            wrong.append(f"round {number}: {sorted(owned.values())} parts")
    return _check("reducers_spread", wrong)


def _traffic_bounded(outcome: Outcome) -> dict[str, Any]:
    """Nobody receives more in a round than its parts from every contributor, the results, and 1 MB.

    Left out: rounds disturbed by a kill, and the first after a state was fetched from another peer.
    """
    wrong, disturbed = [], _disturbed(outcome)
    for peer, log in outcome.logs.items():
        for number, entry in log.items():
            if entry["synced"] or (number == min(log) and number > 1) or number in disturbed:
                continue
            owned = sum(owner == peer for owner in entry["reducers"])
            bound = owned * len(entry["contributors"]) * outcome.part_bytes[0]
            bound += len(entry["reducers"]) * outcome.part_bytes[1] + SLACK_BYTES
            if entry["bytes_received"] > bound:
                wrong.append(f"round {number}, {peer}: {entry['bytes_received']} bytes, bound {bound}")
    return _check("traffic_bounded", wrong)
