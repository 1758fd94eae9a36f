"""What a long history costs: to keep it on the disk, to load it after a restart, and a newcomer to walk it.

One JSON line a case, for a run of 4096 rounds whose voters are 64 (all of whom sign), with signatures as they are:
`walk`, seconds for a newcomer from the frames to the head; `frames`, their bytes; `anchored`, the same seconds from an
invitation of 400 rounds ago; `file` and `load`, bytes of the chain on the disk and seconds to read and check it;
`save`, milliseconds that it adds to a checkpoint. In the churn case another member votes every 16 rounds, so that no
jump is long.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from peer.chain_file import ChainFile
from peer.identity import Identity
from protocols.chain_payloads import MAX_LINKS, ChainReply, read_link
from protocols.ids import Hash, PeerId, digest
from protocols.messages import Contribution, Ready, Seal, Vote
from protocols.round.chain import Head, seal_hash, seal_zero
from protocols.round.links import Chain
from protocols.round.walking import open_seal, walk
from protocols.statements import Scope
from protocols.table import AWAY, STANDING, Member, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCOPE = Scope(b"r" * 32, "model")
NOTHING = Hash(bytes(32))
CHURN = 16
"""Rounds after which another member votes in place of the one that has voted for longest."""
OLD = 400
"""Rounds since an invitation."""


def seals(voters: int, rounds: int, *, churn: bool) -> Iterator[tuple[Head, tuple[Identity, ...]]]:
    """Seal after seal, and who voted for it."""
    keys = [Identity.from_seed(digest(b"key", number.to_bytes(4, "big"))) for number in range(voters + rounds // CHURN)]
    standing = keys[:voters]
    here = seal_zero(SCOPE, [each.peer for each in standing], NOTHING)
    yield here, ()
    for number in range(1, rounds + 1):
        signing = tuple(standing)
        if churn and number % CHURN == 0:
            standing = [*standing[1:], keys[voters + number // CHURN - 1]]
        here = _child(here, signing, standing)
        yield here, tuple(standing)


def _child(parent: Head, signing: Sequence[Identity], standing: Sequence[Identity]) -> Head:
    names = {each.peer for each in standing}
    rows = {each: replace(row, state=STANDING if each in names else AWAY) for each, row in parent.table.members.items()}
    for peer in names - rows.keys():
        rows[peer] = Member(peer, 1.0, STANDING, direct=True, admitted=parent.seal, sealed=0)
    table = Table({each: replace(row, sealed=row.sealed + (each in names)) for each, row in rows.items()})
    parts = tuple(Contribution(each.peer, digest(each.peer.encode()), 10_000, 12, 1.0) for each in signing)
    body = Seal(
        view=parent.view + 1, parent=parent.seal, round=parent.round + 1, roster=NOTHING, freeze=bytes(32), out=(),
        grams=(NOTHING,) * 16, contributions=parts, results=(), lost=(), table=table.root, state=NOTHING,
    )  # fmt: skip
    name = seal_hash(SCOPE, body)
    votes = tuple(SCOPE.state(each.peer, Vote(body.view, name), each.sign) for each in signing)
    first = signing[0]
    return Head(name, body.view, body.round, table, SCOPE.state(first.peer, body, first.sign), votes, parent.table)


def measure(voters: int, rounds: int, *, churn: bool) -> dict[str, tuple[float, str]]:
    """Every figure and its unit."""
    out: dict[str, tuple[float, str]] = {}
    chain: Chain | None = None
    spent: list[float] = []
    with tempfile.TemporaryDirectory(prefix="murmur-history-") as folder:
        file = ChainFile(Path(folder), SCOPE)
        for head, keys in seals(voters, rounds, churn=churn):
            if chain is None:
                chain = Chain(head)
                continue
            chain.append(head)
            if head.round > rounds - 200:  # a round's cost when the file has its size, rewriting included
                began = time.perf_counter()
                file.save(replace(chain.image, zero=chain.anchor.seal))
                spent.append(time.perf_counter() - began)
                ready = Ready(head.view + 1, head.seal, head.view, (), b"", 0, ())
                chain.mark_final(head.seal, tuple(SCOPE.state(each.peer, ready, each.sign) for each in keys))
        assert chain is not None
        out["save"] = 1000 * sum(spent) / len(spent), "ms"
        out["save/longest"] = 1000 * max(spent), "ms"
        out["file"] = float(file.path.stat().st_size), "bytes"
        began = time.perf_counter()
        image = ChainFile(Path(folder), SCOPE).load(_founders(chain))
        out["load"] = time.perf_counter() - began, "s"
        assert image is not None and image.heads[-1].seal == chain.head.seal
    out["walk"], out["frames"] = _newcomer(chain, chain.anchor)
    invited = next(each for each in reversed(chain.image.milestones) if each.round <= rounds - OLD)
    out["anchored"], _ = _newcomer(chain, None, invited.seal)
    return out


def _founders(chain: Chain) -> list[PeerId]:
    return sorted(chain.anchor.table.members)


def _newcomer(chain: Chain, start: Head | None, anchor: Hash | None = None) -> tuple[tuple[float, str], ...]:
    """Seconds to decode and walk what a donor shows, and the bytes of it."""
    known, size, spent = start.seal if start else anchor, 0, 0.0
    shown = (chain.shown(anchor) or b"") if anchor else b""
    here = start
    while known is not None and (here is None or here.seal != chain.head.seal):
        _, links = chain.since([known])
        raw = ChainReply.fitting(known, links[:MAX_LINKS], shown if here is None else b"").encode()
        size += len(raw)
        began = time.perf_counter()
        reply = ChainReply.decode(raw, SCOPE, sender="donor")
        if here is None:
            here = open_seal(SCOPE, known, read_link(reply.anchor, SCOPE, sender="donor"), sender="donor")
        here = walk(SCOPE, here, reply.links, sender="donor").heads[-1]
        spent += time.perf_counter() - began
        known = here.seal
    return (spent, "s"), (float(size), "bytes")


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="512 rounds of 16 voters")
    parser.add_argument("--case", choices=("steady", "churn"), action="append", help="default: both")
    given = parser.parse_args()
    voters, rounds = (16, 512) if given.quick else (64, 4096)
    for case in given.case or ("steady", "churn"):
        for name, (value, unit) in measure(voters, rounds, churn=case == "churn").items():
            line = {
                "schema": 1, "bench": "history", "case": f"{case}/{name}", "value": value, "unit": unit,
                "against": None, "ratio": None, "better": "lower", "bound": None, "ok": None, "runs": 1,
                "spread": [value, value], "seed": 0, "quick": given.quick,
            }  # fmt: skip
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
