"""What a running daemon answers on its local interface: put together from its parts, as far as these are there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocols.errors import LocalError
from protocols.ids import Hash, PeerId
from protocols.invitation import Anchor

from .api import Answers
from .peers import Record, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from .control import Control
    from .entering import Entry
    from .pulse import Pulse


@dataclass(frozen=True, slots=True)
class Desk:
    """The parts that answer. ``anchor``: what this daemon itself was invited with."""

    anchor: Anchor | None
    entry: Entry
    pulse: Pulse
    control: Control

    def peers(self) -> dict[str, Any]:
        """Peers of the run as they are known here."""
        network, run, machine = self.entry.network, self.entry.run, self.pulse.machine
        now = self.pulse.status
        own = PeerId(now["peer"])
        sealed = machine.head.round if machine is not None else None
        record = Record(now["version"], sealed, tuple(now["reach"]["addresses"]))
        known = network.known() if network is not None else {}
        found = rows(
            own,
            machine.head if machine is not None else None,
            network.lines() if network is not None else {},
            {**known, own: record},
            run.manifest.members.founders if run is not None else (),
        )
        return {"schema": 1, "peers": found}

    def invite(self) -> dict[str, Any]:
        """An invitation to this run; raises LocalError while nobody could come by it."""
        known = self.pulse.machine.anchor if self.pulse.machine is not None else None
        return self.entry.invitation(Anchor(known[1], known[0]) if known else self.anchor)

    async def follow(self, seal: str) -> dict[str, Any]:
        """A person chose a history of the run; raises LocalError where it is none of those shown."""
        session = self.pulse.session
        if session is None or not re.fullmatch(r"[0-9a-f]{64}", seal):
            raise LocalError(f"{seal[:64]!r} is none of the histories shown", remedy="`murmur status` shows them")
        await session.follow(Hash(bytes.fromhex(seal)))
        return {"schema": 1, "following": seal}


def answers(desk: Desk, end: Callable[[], None]) -> Answers:
    """Every answer; ``end`` asks the daemon to stop."""

    def stop() -> dict[str, Any]:
        end()
        return {"schema": 1, "state": "stopping"}

    def finish() -> dict[str, Any]:
        answer = desk.control.finish()
        if not answer["under_way"]:
            end()
        return answer

    return Answers(
        snapshot=lambda: desk.pulse.status,
        peers=desk.peers,
        stop=stop,
        finish=finish,
        pause=desk.control.pause,
        resume=desk.control.resume,
        invite=desk.invite,
        follow=desk.follow,
    )
