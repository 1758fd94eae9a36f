"""The lab's hosts, routers and lines do what their names say, seen with plain sockets."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from tests.network import probe, rooms
from tests.network.natlab import Lab
from tests.network.rulesets import Nat
from tests.network.wires import next_line
from tests.peer.live import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.network.natlab import Home
    from tests.network.wires import Host

ROOT = Path(__file__).resolve().parents[2]
PROBE = (sys.executable, "-I", "-S", probe.__file__)
PORT = 4001
MIB = 1 << 20
SILENCE = "TimeoutError"
KINDS: tuple[Nat, ...] = get_args(Nat)


def asking(
    host: Host, kind: str, address: str, port: int = PORT, *, source: int = 0, size: int = 0
) -> subprocess.Popen[str]:
    """A question under way: those that nobody answers take their time together."""
    return host.popen([*PROBE, "ask", kind, address, str(port), str(source), str(size)], stdout=subprocess.PIPE)


def told(question: subprocess.Popen[str]) -> list[str]:
    """(address, port) under which the answering host saw who asked; or the error's name alone."""
    return question.communicate(timeout=30)[0].split()


def ask(host: Host, kind: str, address: str, port: int = PORT, *, source: int = 0, size: int = 0) -> list[str]:
    """Ask and wait, as ``asking`` and ``told``."""
    return told(asking(host, kind, address, port, source=source, size=size))


@contextlib.contextmanager
def answering(host: Host, port: int = PORT) -> Iterator[list[str]]:
    """The host answers meanwhile; afterwards the list holds whom it heard, as ``udp ADDRESS PORT``."""
    process = host.popen([*PROBE, "answer", str(port)], stdout=subprocess.PIPE)
    assert next_line(process.stdout) == "ready"
    heard: list[str] = []
    yield heard
    assert process.poll() is None, "the answering probe died"
    process.terminate()
    heard += process.communicate(timeout=10)[0].splitlines()


def punched(one: Home, other: Home) -> bool:
    """Whether datagrams pass both ways when both ends send at nearly the same time, ``one`` first."""
    ends = [
        here.popen(
            [*PROBE, "punch", str(PORT), there.public_address, str(PORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for here, there in ((one, other), (other, one))
    ]
    assert [next_line(end.stdout) for end in ends] == ["ready", "ready"]
    for end in ends:
        assert end.stdin is not None
        end.stdin.write("go\n")
        end.stdin.flush()
        assert next_line(end.stdout) == "sent"
    said = [next_line(end.stdout) for end in ends]
    assert set(said) <= {"open", "closed"}
    return said == ["open", "open"]


@pytest.mark.parametrize("nat", KINDS)
def test_replies_get_in_and_strangers_do_not(lab: Lab, nat: Nat) -> None:
    public, home = lab.public(), lab.home(nat)
    passing, dropped = ("tcp", "udp") if nat != "no_udp" else ("tcp",), ("udp",) if nat == "no_udp" else ()
    with answering(public) as outside:
        for kind in passing:
            assert ask(home, kind, public.address)[0] == home.public_address
        for kind in dropped:
            assert ask(home, kind, public.address) == [SILENCE]
    assert [seen.split()[0] for seen in outside] == [*passing]

    # A neighbour of the provider's could send packets to the private address itself.
    via = f"{home.public_address} dev line-{home.line.number}"
    lab.internet.configure(f"route add {home.address}/32 via {via}")
    with answering(home) as inside:
        strangers = [
            asking(public, kind, address) for kind in ("tcp", "udp") for address in (home.address, home.public_address)
        ]
        refused = ["ConnectionRefusedError"] if nat == "bridge" else [SILENCE]  # the machine speaks for its container
        assert [told(each) for each in strangers] == [[SILENCE], refused, [SILENCE], [SILENCE]]
        for kind in ("tcp", "udp"):
            assert len(ask(home.router, kind, home.address)) == 2  # it does answer
            assert len(ask(home.neighbour(), kind, home.address)) == 2
    assert [seen.split()[0] for seen in inside] == ["tcp", "tcp", "udp", "udp"]


@pytest.mark.parametrize("nat", ["port_preserving", "double", "bridge"])
def test_a_port_stays_the_same_and_open_only_to_whom_one_sent(lab: Lab, nat: Nat) -> None:
    one, two, home = lab.public(), lab.public(), lab.home(nat)
    with answering(one), answering(two):
        for public in (one, two):
            assert ask(home, "udp", public.address, source=PORT) == [home.public_address, str(PORT)]
        asked = home.popen([*PROBE, "listen", one.address, str(PORT), str(PORT + 1)], stdout=subprocess.PIPE)
        assert next_line(asked.stdout) == f"{home.public_address} {PORT + 1}"
        others = [asking(host, "udp", home.public_address, PORT + 1) for host in (two, one)]  # from other ports
        assert [told(each) for each in others] == [[SILENCE]] * 2
    asking(one, "udp", home.public_address, PORT + 1, source=PORT)
    assert asked.communicate(timeout=20)[0] == f"{one.address} {PORT}\n"


def test_a_symmetric_router_takes_another_port_for_every_destination(lab: Lab) -> None:
    publics, home = [lab.public() for _ in range(3)], lab.home("symmetric")
    with contextlib.ExitStack() as stack:
        for public in publics:
            stack.enter_context(answering(public))
        seen = [ask(home, "udp", public.address, source=PORT) for public in publics]
    assert {address for address, _ in seen} == {home.public_address}
    assert len({port for _, port in seen}) > 1


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("port_preserving", "port_preserving", True),
        ("port_preserving", "double", True),
        ("port_preserving", "symmetric", False),
        ("symmetric", "symmetric", False),
        ("port_preserving", "no_udp", False),
    ],
)
def test_both_sending_at_once_opens_port_preserving_routers_only(
    lab: Lab, one: Nat, other: Nat, expected: bool
) -> None:
    assert punched(lab.home(one), lab.home(other)) is expected


@pytest.mark.parametrize("first", ["bridge", "port_preserving"])
def test_a_bridge_opens_when_its_own_end_sends_first(lab: Lab, first: Nat) -> None:
    """A datagram that comes before takes the port's place in its NAT, and the container's leave from another one."""
    homes = [lab.home("bridge"), lab.home("port_preserving")]
    one, other = homes if first == "bridge" else reversed(homes)
    assert punched(one, other) is (first == "bridge")


def test_addresses_are_those_of_the_kind(lab: Lab) -> None:
    homes = {nat: lab.home(nat) for nat in KINDS}
    assert len({home.public_address for home in homes.values()}) == len(homes)
    assert all(home.public_address.startswith("11.22.33.") for home in homes.values())
    assert homes["bridge"].address == "172.17.0.2"
    assert "172.17.0.1/16" in homes["bridge"].router.run(["ip", "address", "show", "docker0"]).stdout
    assert {nat: len(home.routers) for nat, home in homes.items() if len(home.routers) != 1} == {"double": 2}
    assert homes["double"].router.address.startswith("100.64.")
    assert homes["symmetric"].neighbour().address == homes["symmetric"].address[:-1] + "3"


def test_ipv6_is_not_translated_and_lets_in_only_replies(lab: Lab) -> None:
    public, home = lab.public(ipv6=True), lab.home("port_preserving", ipv6=True)
    with answering(public):
        for kind in ("tcp", "udp"):
            assert ask(home, kind, public.address6, source=PORT) == [home.address6, str(PORT)]
            assert ask(home, kind, public.address)[0] == home.public_address
    with answering(home) as heard:
        strangers = [asking(public, kind, home.address6) for kind in ("tcp", "udp")]
        assert [told(each) for each in strangers] == [[SILENCE]] * 2
        for kind in ("tcp", "udp"):
            assert len(ask(home.neighbour(), kind, home.address6)) == 2
    assert len(heard) == 2


def test_hosts_without_ipv4_reach_each_other_by_ipv6_alone(lab: Lab) -> None:
    both, six, home = lab.public(ipv6=True), lab.public(ipv4=False, ipv6=True), lab.home(None, ipv6=True)
    assert (six.address, six.public_address) == (six.address6, "")
    assert (home.address, home.public_address) == (home.address6, "")
    with answering(both), answering(six):
        for kind in ("tcp", "udp"):
            assert ask(six, kind, both.address6)[0] == six.address
            assert ask(both, kind, six.address)[0] == both.address6
            assert ask(home, kind, six.address)[0] == home.address
            for host in (six, home):
                assert ask(host, kind, both.address) == ["OSError"], "the network is unreachable"
    with answering(home) as heard:
        assert ask(six, "udp", home.address) == [SILENCE]
    assert heard == []


def test_counters_count_what_passes_the_line(lab: Lab) -> None:
    public, bystander, home = lab.public(), lab.public(), lab.home()
    before = [host.counter() for host in (home, public, bystander)]
    with answering(public):
        ask(home, "tcp", public.address, size=MIB)
    moved = [
        (host.counter().rx - old.rx, host.counter().tx - old.tx)
        for host, old in zip((home, public, bystander), before, strict=True)
    ]
    for received, sent in moved[:2]:
        assert MIB < received < 1.2 * MIB and MIB < sent < 1.2 * MIB
    assert max(moved[2]) < 4096


def test_a_rate_caps_both_directions(lab: Lab) -> None:
    public, home = lab.public(), lab.home()
    home.rate("40mbit")
    with answering(public):
        began = time.monotonic()
        assert len(ask(home, "tcp", public.address, size=2 * MIB)) == 2
    ideal = 2 * 2 * MIB * 8 / 40e6
    assert 0.8 * ideal < time.monotonic() - began < 4 * ideal


def test_a_line_that_is_cut_is_silent_and_comes_back_with_another_address(lab: Lab) -> None:
    public, home = lab.public(ipv6=True), lab.home(ipv6=True)
    first = home.public_address
    with answering(public):
        assert ask(home, "udp", public.address)[0] == first
        home.cut()
        questions = [asking(home, kind, public.address) for kind in ("tcp", "udp")]
        assert [told(each) for each in questions] == [[SILENCE]] * 2
        home.restore()
        assert ask(home, "udp", public.address)[0] == home.public_address == first
        home.cut()
        home.restore(new_address=True)
        assert home.public_address != first
        gone = asking(public, "tcp", first)
        for kind in ("tcp", "udp"):
            assert ask(home, kind, public.address)[0] == home.public_address
        assert ask(home, "udp", public.address6)[0] == home.address6
        assert told(gone) == [SILENCE]


def test_a_public_host_that_is_cut_comes_back_too(lab: Lab) -> None:
    public, home = lab.public(ipv6=True), lab.home(ipv6=True)
    first = public.address
    with answering(public):
        public.cut()
        questions = [asking(home, "tcp", address) for address in (first, public.address6)]
        assert [told(each) for each in questions] == [[SILENCE]] * 2
        public.restore(new_address=True)
        assert first != public.address == public.public_address
        gone = asking(home, "tcp", first)
        for address in (public.address, public.address6):
            assert len(ask(home, "tcp", address)) == 2
        assert told(gone) == [SILENCE]


def test_multicast_does_not_cross_the_internet_but_a_home(lab: Lab) -> None:
    shout = "import socket, sys; s = socket.socket(2, 2); s.setsockopt(0, 32, socket.inet_aton(sys.argv[1])); "
    shout += "s.sendto(b'x' * 1000, ('224.0.0.251', 5353))"
    home, one, two = lab.home(), lab.public(), lab.public()
    neighbour = home.neighbour()
    before = [home.counter(), two.counter()]
    for host in (home, one):
        host.run([sys.executable, "-I", "-S", "-c", shout, host.address])
    assert [home.counter().tx - before[0].tx, two.counter().rx - before[1].rx] < [1000, 1000]
    (card,) = [each.split() for each in neighbour.run(["cat", "/proc/net/dev"]).stdout.splitlines() if "eth0" in each]
    assert int(card[1]) > 1000


def test_two_labs_do_not_meet(lab: Lab) -> None:
    with Lab() as other:
        here, there = lab.public(), other.public()
        assert here.address == there.address and lab.prefix != other.prefix
        with answering(here) as heard:
            assert ask(other.home(), "tcp", there.address) == ["ConnectionRefusedError"]  # there, nobody answers
            assert len(ask(lab.home(), "tcp", here.address)) == 2
        assert len(heard) == 1


def entered(host: Host, count: int) -> None:
    """Wait until so many processes are in the namespace: a new one needs a moment."""
    until(lambda: len(rooms.inhabitants([host.namespace])) == count, 10, f"{count} have entered")


def test_nothing_is_left_after_a_failure(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "GRACE_S", 0.5)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(100)"
    for failure in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(failure), Lab() as broken:
            home = broken.home("double")
            process = home.popen([sys.executable, "-I", "-S", "-c", stubborn], stdout=subprocess.PIPE)
            next_line(process.stdout)
            home.popen(["setsid", "--fork", "sleep", "100"]).wait(10)  # a grandchild that nobody knows
            frozen = home.popen(["sleep", "100"])
            entered(home, 3)
            frozen.send_signal(signal.SIGSTOP)
            raise failure
        assert (process.returncode, frozen.returncode) == (-signal.SIGKILL, -signal.SIGTERM)
        assert rooms.existing(broken.prefix) == [] != rooms.existing(lab.prefix)


KILLED = """
import signal, time
from tests.network.natlab import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
with Lab() as lab:
    process = lab.home().popen(["sleep", "100"])
    print(lab.prefix, process.pid, flush=True)
    time.sleep(100)
"""


def alive(pid: str) -> bool:
    """Whether a process runs; a zombie has no command line."""
    with contextlib.suppress(FileNotFoundError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


def test_what_a_killed_run_left_is_removed_by_the_next(lab: Lab) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        prefix, pid = next_line(run.stdout, 30).split()
        assert prefix.startswith(f"{rooms.PREFIX}{run.pid}-")
        with Lab():
            assert rooms.existing(prefix) and alive(pid), "who made it lives"
        run.kill()
    assert len(rooms.existing(prefix)) == 3 and alive(pid)
    with Lab():
        assert rooms.existing(prefix) == [] and not alive(pid)
    assert rooms.existing(lab.prefix)


def test_an_interrupt_from_the_keyboard_cleans_up(lab: Lab) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as run:
        prefix = next_line(run.stdout, 30).split()[0]
        run.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in run.communicate(timeout=20)[1]
    assert rooms.existing(prefix) == [] != rooms.existing(lab.prefix)


@pytest.mark.usefixtures("lab")
def test_without_root_or_tools_the_reason_says_root(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rooms.missing() is None
    with monkeypatch.context() as patched:
        patched.setattr("shutil.which", lambda name, path: None if name == "nft" else name)
        assert rooms.missing() == "needs root and nft (packages iproute2, nftables)"
        patched.setattr("os.geteuid", lambda: 1000)
        assert rooms.missing() == "needs root for network namespaces"
