"""The ladder, state by state; and what holds for whatever was observed."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.reachability import LONELY_S, MOST_RELAYS, NO_PUBLIC_PEER, Plan, View, plan
from protocols.reach import BUSY, CLOSED, MAX_ASKED, PROVEN, SILENT, WORDS, AskReach

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT = 4001
HOME = f"/ip4/192.168.1.7/tcp/{PORT}"
WORLD = f"/ip4/8.8.8.8/tcp/{PORT}"
QUIC = f"/ip4/8.8.8.8/udp/{PORT}/quic-v1"
SIX = f"/ip6/2001:4860::8/tcp/{PORT}"
RELAYS = tuple(f"/ip4/9.9.9.{number}/tcp/4002/p2p/relay{number}" for number in range(1, 4))
CIRCUIT = f"{RELAYS[0]}/p2p-circuit"
TCP_END, UDP_END = "/ip4/8.8.8.8/tcp/50000", "/ip4/8.8.8.8/udp/50000/quic-v1"
BEHIND = View(PORT, (HOME,), frozenset({"192.168.1.7"}), {"observer": UDP_END}, {WORLD: {"observer": SILENT}})


def said(result: Plan) -> str:
    return "; ".join(result.evidence)


def test_before_anybody_answered_nothing_is_said_and_the_port_is_asked_about() -> None:
    result = plan(replace(BEHIND, seen={}, found={}, relays=RELAYS))
    assert result == Plan("unknown", ("nobody has been asked yet",), (), (), (f"/tcp/{PORT}",))


def test_an_observer_that_sees_no_address_is_no_evidence() -> None:
    assert plan(replace(BEHIND, seen={"observer": ""}, found={}, relays=RELAYS)).rung == "unknown"


def test_whoever_has_met_nobody_for_long_is_told_what_would_help_unless_it_is_public_itself() -> None:
    lonely = replace(BEHIND, seen={}, found={HOME: {"lan": PROVEN}}, lonely_s=LONELY_S + 1)
    assert plan(lonely) == Plan("none", (NO_PUBLIC_PEER,), (), (), (f"/tcp/{PORT}",))
    assert plan(replace(lonely, lonely_s=LONELY_S)).rung == "unknown"
    assert plan(replace(lonely, interfaces=frozenset({"8.8.8.8"}))).rung == "unknown"


def test_a_containers_owner_is_told_which_port_to_map_while_nobody_gets_in() -> None:
    """FC24."""
    inside = replace(BEHIND, contained=True, relays=RELAYS, listen=(HOME, CIRCUIT))
    assert f"maps TCP and UDP port {PORT} (-p {PORT}:{PORT} -p {PORT}:{PORT}/udp)" in said(plan(inside))
    for other in (replace(inside, contained=False), replace(inside, found={WORLD: {"observer": PROVEN}})):
        assert "container" not in said(plan(other))


def test_who_listens_on_loopback_only_says_so_as_it_is() -> None:
    listen = (f"/ip4/127.0.0.1/tcp/{PORT}", CIRCUIT)
    result = plan(replace(BEHIND, listen=listen, relays=RELAYS, confined=True))
    assert (result.rung, result.publish, result.relays) == ("unknown", listen[:1], ())


@pytest.mark.parametrize(
    ("address", "interface", "rung"),
    [(WORLD, "8.8.8.8", "public"), (WORLD, "192.168.1.7", "mapped"), (SIX, "2001:4860::8", "ipv6")],
)
def test_a_proven_address_in_the_world_is_told_and_needs_no_relay(address: str, interface: str, rung: str) -> None:
    found = {address: {"a": SILENT, "observer": PROVEN}, HOME: {"lan": PROVEN}}
    result = plan(
        replace(BEHIND, interfaces=frozenset({interface}), found=found, relays=RELAYS, listen=(HOME, CIRCUIT))
    )
    assert result.direct and (result.rung, result.publish, result.relays) == (rung, (address,), ())
    assert said(result) == f"peer server reached it at {address}"


def test_ipv4_counts_before_ipv6() -> None:
    found = {SIX: {"observer": PROVEN}, WORLD: {"observer": PROVEN}}
    assert plan(replace(BEHIND, found=found)).rung == "mapped"


def test_proven_tcp_is_told_and_quic_follows_from_it() -> None:
    """Told beside it, QUIC got into address books, where it was one more seed to try for each peer."""
    found = {WORLD: {"observer": PROVEN}}
    assert plan(replace(BEHIND, found=found, listen=(WORLD, QUIC))).publish == (WORLD,)
    assert plan(replace(BEHIND, listen=(WORLD, QUIC), confined=True)).publish == (WORLD,)
    assert plan(replace(BEHIND, listen=(WORLD, QUIC))).publish == ()


def test_a_mapped_address_is_asked_about_and_nothing_else_that_p2pd_listens_at() -> None:
    mapped = [f"/ip4/8.8.4.{number}/tcp/{PORT}" for number in range(3)]
    listen = (HOME, WORLD, QUIC, CIRCUIT, mapped[0], *mapped)
    result = plan(replace(BEHIND, listen=listen, interfaces=frozenset({"8.8.8.8", "192.168.1.7"})))
    assert result.ask == (f"/tcp/{PORT}", *mapped[:2])


def test_on_a_network_without_a_way_out_a_neighbours_word_is_enough() -> None:
    result = plan(replace(BEHIND, seen={"lan": "/ip4/192.168.1.7/tcp/9"}, found={HOME: {"lan": PROVEN}}, relays=RELAYS))
    assert (result.rung, result.publish, result.relays) == ("unknown", (HOME,), ())
    assert not result.direct


def test_what_is_private_is_not_told_where_anybody_outside_could_read_it() -> None:
    view = replace(BEHIND, seen={"lan": "/ip4/192.168.1.7/tcp/9"}, found={HOME: {"lan": PROVEN}}, outside=True)
    assert (plan(view).rung, plan(view).publish) == ("unknown", ())


def test_behind_a_nat_it_reserves_and_tells_nothing_until_a_relay_took_it() -> None:
    result = plan(replace(BEHIND, relays=RELAYS))
    assert (result.rung, result.publish, result.relays) == ("none", (), RELAYS[:MOST_RELAYS])
    assert said(result) == f"{WORLD}: no answer (1 peer); seen at {UDP_END}; no relay has taken it yet"


def test_without_any_relay_it_says_what_would_help() -> None:
    result = plan(BEHIND)
    assert (result.rung, result.publish, result.relays) == ("none", (), ())
    assert result.evidence[-1] == NO_PUBLIC_PEER


@pytest.mark.parametrize(("punched", "rung"), [(0, "relayed"), (2, "punched")])
def test_circuits_are_told_and_the_relays_kept(punched: int, rung: str) -> None:
    listen = (HOME, CIRCUIT, CIRCUIT.replace("9.9.9.1", "9.9.9.9"))
    result = plan(replace(BEHIND, listen=listen, relays=RELAYS, punched=punched))
    assert (result.rung, result.publish, result.relays) == (rung, listen[1:], RELAYS[:MOST_RELAYS])
    assert "through 1 relay(s)" in said(result)
    assert ("directly with 2 peer(s)" in said(result)) == bool(punched)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"a": TCP_END}, "seen over TCP alone"),
        ({"a": UDP_END, "b": UDP_END}, f"seen at {UDP_END}"),
        ({"a": UDP_END, "b": TCP_END.replace("50000", "7")}, f"seen at {UDP_END}"),
        ({"a": UDP_END, "b": UDP_END.replace("50000", "50001")}, "a symmetric NAT"),
        ({"a": UDP_END, "b": "/ip6/2a0b::1/udp/4001/quic-v1"}, f"seen at {UDP_END}"),
    ],
)
def test_the_kind_of_nat_is_told_from_udp_alone(seen: Mapping[str, str], words: str) -> None:
    result = plan(replace(BEHIND, seen=seen))
    assert words in said(result) and ("symmetric" in said(result)) == ("symmetric" in words)


def test_failures_are_counted_by_word_and_once_each() -> None:
    result = plan(replace(BEHIND, found={WORLD: {"a": SILENT, "b": CLOSED, "c": SILENT}}))
    assert result.evidence[:2] == (f"{WORLD}: nobody listens there (1 peer)", f"{WORLD}: no answer (2 peers)")


ips = st.sampled_from(
    ["8.8.8.8", "8.8.4.4", "192.168.1.7", "127.0.0.1", "100.64.0.1", "169.254.0.1"]
) | st.ip_addresses(v=4).map(str)
sixes = st.sampled_from(["2001:4860::8", "fe80::1", "::ffff:8.8.8.8", "fd00::1", "::1"]) | st.ip_addresses(v=6).map(str)
hosts = ips.map("/ip4/{}".format) | sixes.map("/ip6/{}".format) | st.just("/dns4/example.org")
tails = st.sampled_from(
    [
        "/tcp/4001",
        "/udp/4001/quic-v1",
        "/udp/50000/quic-v1",
        "/tcp/0",
        "/udp",
        "/udp/",
        "/tcp/4001/p2p/R/p2p-circuit",
        "",
    ]
)
strings = st.builds(str.__add__, hosts, tails)
odd = st.sampled_from(["", "/", "/ip4", "/ip4//udp/", "/p2p-circuit", "/tcp/4001", "x/udp/y"]) | st.text(
    "/ip46udtc.:", max_size=12
)
addresses = strings | odd
peers = st.sampled_from(["observer", "b", "c", "d"])
views = st.builds(
    View,
    st.integers(1, 65535),
    st.lists(addresses, max_size=6).map(tuple),
    st.frozensets(ips | sixes, max_size=3),
    st.dictionaries(peers, addresses, max_size=4),
    st.dictionaries(addresses, st.dictionaries(peers, st.sampled_from(sorted(WORDS)), max_size=4), max_size=4),
    st.lists(st.sampled_from(RELAYS), unique=True).map(tuple),
    st.integers(0, 3),
    st.floats(0, 2 * LONELY_S),
    st.booleans(),
    st.booleans(),
)


def in_the_world(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("/")[2]).is_global
    except (ValueError, IndexError):
        return False


@given(views)
def test_only_what_somebody_has_proven_is_told(view: View) -> None:
    result = plan(view)
    proven = {each for each, by in view.found.items() if PROVEN in by.values()}
    circuits = {each for each in view.listen if "/p2p-circuit" in each}
    if view.confined:
        assert set(result.publish) == {each for each in view.listen if "/tcp/" in each} - circuits
    else:
        assert set(result.publish) <= proven | circuits
        assert not view.outside or all(in_the_world(each) for each in set(result.publish) - circuits)
    if result.direct:
        assert any(in_the_world(each) for each in proven & set(result.publish))
        assert all(in_the_world(each) for each in result.publish)
        assert not circuits & (set(result.publish) - proven) and not result.relays


@given(views)
def test_what_follows_is_bounded_and_can_be_asked(view: View) -> None:
    result = plan(view)
    assert set(result.relays) <= set(view.relays) and len(result.relays) <= MOST_RELAYS
    assert len(AskReach(result.ask).addresses) <= MAX_ASKED and result.ask[0] == f"/tcp/{view.port}"
    assert result.evidence and all(result.evidence)
    assert (result.rung in {"relayed", "punched"}) <= bool(result.publish)
    assert result.rung != "none" or not result.publish


@given(views)
def test_a_busy_observer_proves_nothing(view: View) -> None:
    found = {address: dict.fromkeys(by, BUSY) for address, by in view.found.items()}
    assert not plan(replace(view, found=found)).direct
