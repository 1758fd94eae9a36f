"""People's homes: what each kind of network makes of a daemon, and that all of them train."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.network.homes import Lighthouse, daemon, founders, identity
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab
    from tests.network.rulesets import Nat
    from tests.network.wires import Host

PUNCHABLE: tuple[Nat, ...] = ("port_preserving", "double", "bridge")
HOMES: tuple[Nat, ...] = (*PUNCHABLE, "symmetric", "no_udp")
KINDS = ("public", *HOMES)


def ways(one: str, two: str) -> set[str]:
    """How two peers come together, by the kinds of their networks.

    A container's host that gets a packet before it has sent one gives the container another port for half a minute: so
    that pair is punched when the order of two packets happens to be right.
    """
    if "public" in (one, two):
        return {"direct"}
    if one not in PUNCHABLE or two not in PUNCHABLE:
        return {"relayed"}
    return {"punched", "relayed"} if "bridge" in (one, two) else {"punched"}


def rungs(kind: str) -> set[str]:
    """What a daemon says of itself, beside one of each other kind."""
    if kind == "public":
        return {"public"}
    if kind == "bridge":
        return {"punched", "relayed"}
    return {"punched"} if kind in PUNCHABLE else {"relayed"}


@pytest.mark.timeout(420)
def test_each_kind_with_each_other_and_all_of_them_train(lab: Lab, tmp_path: Path) -> None:
    """One lighthouse, one peer behind each kind of network. The table is also in README and CONTRIBUTING."""
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run = founders(tmp_path, KINDS)
    hosts: dict[str, Host] = {"public": lab.public(), **{kind: lab.home(kind) for kind in HOMES}}
    peers = {kind: daemon(hosts[kind], tmp_path / kind, run, [lighthouse]) for kind in KINDS}
    names = {identity(peer): kind for kind, peer in peers.items()}

    def found() -> dict[tuple[str, str], str]:
        return {(kind, names[other]): how for kind, peer in peers.items() for other, how in peer.connections().items()}

    expected = {(one, two): ways(one, two) for one, two in itertools.permutations(KINDS, 2)}

    def as_expected() -> bool:
        now = found()
        return now.keys() == expected.keys() and all(how in expected[pair] for pair, how in now.items())

    try:
        until(as_expected, 150, "every pair is connected as the table says")
        stands = {kind: peer.status()["reach"]["rung"] for kind, peer in peers.items()}
        assert all(stands[kind] in rungs(kind) for kind in KINDS), stands
        sealed = max(peer.status()["round"]["last_sealed"] for peer in peers.values())
        until(
            lambda: min(peer.status()["round"]["last_sealed"] for peer in peers.values()) >= sealed + 3,
            120,
            "all of them seal",
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{found()}" + "".join(peer.log() for peer in peers.values())) from error
