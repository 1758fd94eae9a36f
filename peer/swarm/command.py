"""The command: start the swarm, follow it line by line, check it, write the report."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocols.compression import get_codec
from protocols.errors import LocalError
from protocols.ids import short
from protocols.round.exchange import part_sizes
from protocols.tensors import PART_VALUES

from ..corpus import load_shards
from ..evaluate import held_out_loss
from ..exits import Exit
from ..models import initial_vector
from ..settings import train_config
from . import report
from .baseline import Baselines
from .harvest import Harvest, common_rounds, gather, newest, params_of
from .launch import GONE_S, Launcher, Peer
from .output import Output
from .replay import replay_check, write_trace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from protocols.round.effects import Vector

    from ..options import SwarmOptions

ROUND_S = 120.0
"""Allowed for each round when no time-out was given; and as much again for the start."""
DEATH_S = 100.0
"""Allowed on top for each peer that is killed: its rounds go on after deadlines only."""
CATCH_UP_S = 10.0
"""For whom joined late to seal the last round as well, once the others have ended."""
LOOK_S = 0.25


def run(options: SwarmOptions) -> int:
    """``murmur swarm``: 0 only if every check holds. Raises ConfigError, EnvironmentFault."""
    output = Output(options.json)
    folder = Path(tempfile.mkdtemp(prefix="murmur-swarm-"))
    try:
        document = asyncio.run(_until_ended(Swarm(options, folder, output.say)))
    finally:
        if options.keep:
            sys.stderr.write(f"the peers' homes are in {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    output.write(document)
    return Exit.DONE if document["ok"] else Exit.FAILED


async def _until_ended(swarm: Swarm) -> dict[str, Any]:
    """Run the swarm; SIGTERM ends it, daemons and folder included, as Ctrl-C does."""
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        return await swarm.run()
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


class Swarm:
    """One run of the command."""

    def __init__(self, options: SwarmOptions, folder: Path, say: Callable[[str], None]) -> None:
        self._options = options
        self._launcher = Launcher(options, folder)
        self._config = train_config(self._launcher.manifest, None)
        self._shards = load_shards(self._config.data)
        self._losses: dict[int, float] = {}
        self._say = say

    async def run(self) -> dict[str, Any]:
        """Everything from the first daemon to the report."""
        self._say(
            f"run {self._launcher.run.hex()[:12]}: {len(self._launcher.peers)} real daemons, "
            f"{self._options.rounds} rounds of {self._config.size}"
        )
        try:
            async with asyncio.timeout(self._options.timeout or self._allowed()):
                await self._launcher.start()
                self._tell_peers()
                await self._measure(0, initial_vector(self._config.size, self._config.context, self._config.seed))
                await self._follow()
        except TimeoutError:
            self._say("out of time: ending the daemons")
        except LocalError as error:
            self._say(str(error))
        except asyncio.CancelledError:
            self._say("interrupted: ending the daemons")
            raise
        finally:
            await self._launcher.stop()
        return await self._conclude()

    def _allowed(self) -> float:
        """Seconds for the whole swarm."""
        deaths = sum(kill.count for kill in self._options.kill)
        return ROUND_S * (self._options.rounds + 1) + DEATH_S * deaths

    async def _follow(self) -> None:
        """Print a line for every round that all have sealed, until the daemons that began the run have ended."""
        while any(peer.running for peer in self._launcher.founders):
            harvests = await self._see()
            for peer in await self._launcher.admit(newest(harvests)):
                self._say(f"  peer {peer.index}   {peer.identity.peer}   joins at round {peer.joins}")
            for peer in self._launcher.peers:
                if peer.process is not None and peer.process.returncode and not self._planned(peer):
                    raise LocalError(f"peer {peer.index} {peer.ending()}: ending the others")
            await asyncio.sleep(LOOK_S)
        late = [peer for peer in self._launcher.peers if peer.joins is not None]
        for _ in range(round(CATCH_UP_S / LOOK_S)):
            harvests = await self._see()
            last = newest(harvests)
            if all(last in each.log for each in harvests if each.peer in late and each.peer.running):
                return
            await asyncio.sleep(LOOK_S)

    async def _see(self) -> list[Harvest]:
        """Look at all processes and homes; tell what is new."""
        self._look()
        harvests = await self._gather()
        await self._tell_new(harvests)
        return harvests

    def _planned(self, peer: Peer) -> bool:
        """Whether a kill is behind the end of this daemon."""
        self._look()  # it took its token before it died
        return peer.killed is not None

    async def _gather(self) -> list[Harvest]:
        launcher = self._launcher
        return await asyncio.to_thread(gather, launcher.peers, launcher.run, self._config.parameters)

    async def _tell_new(self, harvests: list[Harvest]) -> None:
        """Measure and print the rounds that everybody has sealed since the last look."""
        for number in common_rounds(harvests):
            params = None if number in self._losses else await asyncio.to_thread(params_of, harvests, number)
            if params is not None:
                await self._measure(number, params)
                self._tell_round(number, [each.log[number] for each in harvests if number in each.log])

    async def _measure(self, number: int, params: Vector) -> None:
        self._losses[number] = await self._looking(asyncio.to_thread(held_out_loss, params, self._config, self._shards))

    async def _looking(self, work: Awaitable[float]) -> float:
        """Do something longer without losing sight of the daemons."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            self._look()
        return task.result()

    def _look(self) -> None:
        for peer in self._launcher.peers:
            peer.look(time.monotonic())
        for peer in self._launcher.see_deaths():
            self._say(f"  peer {peer.index}   killed: {peer.killed}")

    async def _conclude(self) -> dict[str, Any]:
        await self._until_gone()
        harvests = await self._gather()
        await self._tell_new(harvests)
        outcome = self._outcome(harvests)
        found = report.checks(outcome)
        if self._options.trace is not None:
            await asyncio.to_thread(write_trace, self._options.trace, self._launcher, harvests)
            found.append(await asyncio.to_thread(replay_check, self._options.trace))
        baseline = await self._baseline()
        found += report.baseline_checks(report.last_loss(outcome), baseline, len(harvests))
        return self._document(outcome, found, baseline)

    async def _until_gone(self) -> None:
        """Give the processes of killed daemons their time to notice."""
        for _ in range(round(GONE_S / LOOK_S) + 1):
            self._look()
            if not any(peer.killed and peer.left_behind is None and peer.orphans() for peer in self._launcher.peers):
                return
            await asyncio.sleep(LOOK_S)

    def _outcome(self, harvests: list[Harvest]) -> report.Outcome:
        """All that the checks look at."""
        numbers = sorted({number for each in harvests for number in each.log})
        codecs, values = self._launcher.manifest.codec, self._config.parameters
        return report.Outcome(
            rounds_wanted=self._options.rounds,
            peers=[_peer_entry(each) for each in harvests],
            logs={each.peer.identity.peer: each.log for each in harvests},
            hashes={
                n: {each.peer.identity.peer: each.state_hash(n) for each in harvests if n in each.log} for n in numbers
            },
            losses=self._losses,
            orphans=sorted({pid for peer in self._launcher.peers for pid in peer.outlived()}),
            part_bytes=(_part_bytes(codecs.update, values), _part_bytes(codecs.result, values)),
            kills=self._options.kill,
        )

    async def _baseline(self) -> dict[str, float | None]:
        if not self._options.baseline:
            return {"alone": None, "adamw": None}
        self._say("baselines: one peer alone and plain AdamW, each at four rates")
        baselines = Baselines(self._launcher.manifest, self._config, self._shards)
        return await asyncio.to_thread(baselines.run, self._options.rounds, self._say)

    def _document(
        self, outcome: report.Outcome, found: list[dict[str, Any]], baseline: dict[str, float | None]
    ) -> dict[str, Any]:
        ok = all(check["ok"] for check in found)
        for check in found:
            if not check["ok"]:
                self._say(f"  ! {check['name']}: {check['detail']}")
        self._say(f"{'ok' if ok else 'FAILED'}: {sum(c['ok'] for c in found)} of {len(found)} checks hold")
        return {
            "schema": 1,
            "ok": ok,
            "config": self._describe(),
            "checks": found,
            "peers": outcome.peers,
            "rounds": report.rounds(outcome),
            "baseline": baseline,
        }

    def _describe(self) -> dict[str, Any]:
        manifest, options = self._launcher.manifest, self._options
        return {
            "run_id": self._launcher.run.hex(),
            "peers": options.peers,
            "drivers": 0,
            "rounds": options.rounds,
            "seed": options.seed,
            "size": manifest.model.size,
            "steps": manifest.round.steps,
            "codec": manifest.codec.update,
            "result_codec": manifest.codec.result,
            "rule": manifest.rule.name,
            "kill": [str(kill) for kill in options.kill],
            "join_at": list(options.join_at),
            "attack": [],
            "from": 2,
            "versions": {name: version(name) for name in ("murmuration", "torch", "numpy", "hivemind")},
        }

    def _tell_peers(self) -> None:
        for peer in self._launcher.founders:
            self._say(f"  peer {peer.index}   {peer.identity.peer}   pid {peer.process.pid if peer.process else '–'}")

    def _tell_round(self, number: int, entries: list[dict[str, Any]]) -> None:
        first = report.witness(entries)
        seals = {entry["seal"] for entry in entries}
        agreed = (
            f"seal {first['seal'][:8]} on all {len(entries)}" if len(seals) == 1 else f"{len(seals)} DIFFERENT SEALS"
        )
        seconds = max(sum(entry["seconds"].values()) for entry in entries)
        void = f"   void: {first['reason']}" if first["void"] else ""
        self._say(
            f"round {number:>3}   held-out {self._losses[number]:.3f} {_bar(self._losses, number)}   {agreed}   "
            f"coordinator {short(first['coordinator'])}   {seconds:.1f} s{void}"
        )


def _bar(losses: dict[int, float], number: int, width: int = 24) -> str:
    """The loss as a bar: full at the loss before training, empty at 1 nat."""
    share = (losses[number] - 1.0) / max(losses[0] - 1.0, 1e-9)
    filled = max(0, min(width, round(width * share)))
    return "█" * filled + "·" * (width - filled)


def _peer_entry(harvest: Harvest) -> dict[str, Any]:
    peer, sealed = harvest.peer, sorted(harvest.log)
    return {
        "id": peer.identity.peer,
        "index": peer.index,
        "kind": "honest",
        "cell": "model",
        "exit_code": peer.process.returncode if peer.process else None,
        "killed": peer.killed,
        "first_round": sealed[0] if sealed else None,
        "last_round": sealed[-1] if sealed else None,
        "joined": None if peer.joins is None else _joined(harvest, peer.joins),
        "rss_peak": peer.rss_peak,
        "p2pd_bytes": None,
        "banned_in": None,
    }


def _joined(harvest: Harvest, at: int) -> dict[str, Any]:
    """How a peer that joined in round ``at`` fared: the first round in which its update counted, and when it did."""
    peer, log = harvest.peer, harvest.log
    counted = [number for number, entry in sorted(log.items()) if entry["weights"].get(peer.identity.peer)]
    last = harvest.checkpoint(max(log)) if log else None
    return {
        "by": "invitation",
        "at": at,
        "contributed": counted[0] if counted else None,
        "seconds": log[counted[0]]["unix"] - peer.started if counted else None,
        "momentum": bool(last.momentum.any()) if last is not None else None,
    }


def _part_bytes(codec: str, values: int) -> int:
    """Encoded bytes of a whole part."""
    return part_sizes(get_codec(codec), values, PART_VALUES)[0]
