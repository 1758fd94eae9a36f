"""What a peer believes of how others reach it, when some of them lie."""

from __future__ import annotations

import pytest

from dht.reachability import View, plan
from protocols.reach import CLOSED, PROVEN, SILENT, AskReach

HERE, LIE, LOCAL = "/ip4/11.22.33.4/tcp/4001", "/ip4/8.8.4.4/tcp/4001", "/ip4/192.168.1.7/tcp/4001"
END, FALSE_END = "/ip4/11.22.33.4/tcp/50000", "/ip4/8.8.4.4/tcp/50000"


def _view(told: dict[str, tuple[str, str, str]], listen: tuple[str, ...] = (LOCAL,)) -> View:
    """``told``: observer → the end that it sees, the address that it was asked about, what it found."""
    found: dict[str, dict[str, str]] = {}
    for peer, (_, address, word) in told.items():
        found.setdefault(address, {})[peer] = word
    return View(4001, listen, frozenset({"192.168.1.7"}), {peer: end for peer, (end, _, _) in told.items()}, found)


def test_what_most_find_is_published() -> None:
    told = {"seed": (END, HERE, PROVEN), "b": (END, HERE, PROVEN), "c": (END, HERE, SILENT)}
    assert plan(_view(told)).publish == (HERE,) and plan(_view(told)).direct


@pytest.mark.parametrize("others", [("seed",), ("seed", "b"), ("seed", "b", "c")])
def test_one_liar_puts_no_address_into_the_record(others: tuple[str, ...]) -> None:
    """Before, one word of one stranger did: everybody would have dialled whatever it named."""
    told = dict.fromkeys(others, (END, HERE, SILENT)) | {"liar": (FALSE_END, LIE, PROVEN)}
    assert plan(_view(told)).publish == () and not plan(_view(told)).direct
    told = dict.fromkeys(others, (END, HERE, PROVEN)) | {"liar": (FALSE_END, LIE, PROVEN)}
    assert plan(_view(told)).publish == (HERE,)


def test_one_liar_does_not_take_an_address_away() -> None:
    told = {"seed": (END, HERE, PROVEN), "liar": (END, HERE, CLOSED)}
    assert plan(_view(told)).publish == (HERE,)


def test_who_sees_another_family_or_a_private_end_does_not_count() -> None:
    six = "/ip6/2a0b::1/tcp/4001"
    told = {"a": ("/ip6/2a0b::1/tcp/5", six, SILENT), "b": ("/ip4/10.0.0.1/tcp/5", LOCAL, SILENT)}
    assert plan(_view(told | {"c": (END, HERE, PROVEN)})).publish == (HERE,)


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/224.0.0.1/tcp/1",
        "/ip4/8.8.4.4/tcp/0",
        "/ip4/8.8.4.4/tcp/70000",
        "/ip6/::ffff:8.8.4.4/tcp/1",
        "/ip4/8.8.4.4",
    ],
)
def test_what_p2pd_has_heard_about_itself_can_always_be_asked_about(address: str) -> None:
    """Before, a false one ended the task that asks, again and again."""
    listen = (address, HERE, HERE, LOCAL)
    assert AskReach(plan(_view({}, listen)).ask).addresses == ("/tcp/4001", HERE)
