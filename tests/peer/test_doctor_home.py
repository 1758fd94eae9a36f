"""The doctor on options, key, home, disk, run, data and daemon, each in a state that the test has made."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from peer import corpus
from peer import doctor_checks_home as checks
from peer.address_book import AddressBook
from peer.doctor import Check, examine
from peer.doctor_checks import Checks
from peer.doctor_subject import Subject, configured, is_held, look
from peer.identity import Identity
from peer.lock import hold
from peer.options import UpOptions
from peer.paths import Home
from peer.runs import find_run
from protocols.errors import MurmurError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer.doctor_report import Finding

OWN, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{OTHER.peer}"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a key."""
    made = Home(tmp_path / "home")
    made.create()
    OWN.save(made.key)
    return made


def subject(home: Home, file: str = "", flags: dict[str, object] | None = None, **environment: str) -> Subject:
    path = home.root.with_name("config.toml")
    path.write_text(file)
    return look(configured({"home": home.root, **(flags or {})}, path, environment))


def failing(fault: object) -> MurmurError:
    assert isinstance(fault, MurmurError)
    return fault


def test_options_come_from_flags_environment_and_file(home: Home) -> None:
    found = subject(home, f'join = ["{ADDRESS}"]\n', {"p2p_port": 4001}, MURMUR_SIZE="nano").configured
    assert (found.options.join, found.options.p2p_port, found.options.size) == ((ADDRESS,), 4001, "nano")
    outcome = checks.configuration(found)
    assert outcome.result == "pass" and outcome.evidence.endswith("config.toml, MURMUR_SIZE")
    assert found.place("join").endswith("config.toml") and found.place("p2p_port") == "--p2p-port"


def test_each_option_that_is_wrong_is_told_and_the_others_count(home: Home) -> None:
    found = subject(home, "size = 3\np2p-port = 4001\n", None, MURMUR_ROUNDS="many").configured
    outcome = checks.configuration(found)
    assert outcome.result == "fail" and outcome.remedy
    assert "size: '3' is none of" in outcome.evidence and "MURMUR_ROUNDS: 'many' is not" in outcome.evidence
    assert found.options.p2p_port == 4001 and found.options.rounds == 0


@pytest.mark.parametrize(
    ("text", "evidence"),
    [("p2p-port = ", "is not TOML"), ("p2pport = 1", "there is no option"), ("alone = 1", "alone")],
)
def test_a_broken_file_is_a_finding(home: Home, text: str, evidence: str) -> None:
    outcome = checks.configuration(subject(home, text).configured)
    assert outcome.result == "fail" and evidence in outcome.evidence and outcome.remedy


def test_options_that_contradict_each_other_are_a_finding(home: Home) -> None:
    outcome = checks.configuration(subject(home, f'alone = true\njoin = ["{ADDRESS}"]').configured)
    assert outcome.result == "fail" and "--alone never looks for peers" in outcome.evidence


def test_a_variable_that_is_no_option_is_a_warning(home: Home) -> None:
    outcome = checks.configuration(subject(home, MURMUR_P2PPORT="1").configured)
    assert outcome.result == "warn" and "did you mean MURMUR_P2P_PORT?" in outcome.evidence


def test_a_sound_key_is_known_by_its_id(home: Home) -> None:
    found = subject(home)
    assert checks.key(home, found.identity).evidence == f"{OWN.peer}, readable by you only"


def test_a_key_that_others_can_read_is_told_and_left_as_it_is(home: Home) -> None:
    home.key.chmod(0o644)
    outcome = checks.key(home, subject(home).identity)
    assert outcome.result == "warn" and "(mode 644)" in outcome.evidence
    assert outcome.remedy == f"chmod 600 {home.key}"
    assert home.key.stat().st_mode & 0o777 == 0o644


def _is_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "evidence"),
    [
        (_is_a_folder, "cannot read the key"),
        (lambda path: path.write_bytes(b"x" * 68), "does not hold a libp2p Ed25519 key"),
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "is damaged: 40 bytes, not 68"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "its two halves do not match"),
    ],
    ids=["unreadable", "another file", "cut off", "changed"],
)
def test_a_key_that_cannot_be_used_fails_and_the_run_is_not_judged(
    home: Home, spoil: Callable[[Path], None], evidence: str
) -> None:
    spoil(home.key)
    found = subject(home)
    outcome = checks.key(home, found.identity)
    assert outcome.result == "fail" and evidence in outcome.evidence and outcome.remedy
    assert checks.run(found.goal, None, found.identity).result == "skipped"


def test_a_new_home_has_no_key_yet_and_one_that_has_trained_should(home: Home) -> None:
    home.key.unlink()
    assert checks.key(home, None).result == "skipped"
    folder = home.run(bytes(32))
    folder.mkdir(parents=True)
    (folder / "journal").write_bytes(b"")
    outcome = checks.key(home, None)
    assert outcome.result == "warn" and "murmur key import" in (outcome.remedy or "")


def found_by(name: str, look: Callable[[], object]) -> Finding:
    """The finding of one check, as the doctor would report it."""
    (found,) = asyncio.run(examine([Check(name, name, look)]))  # type: ignore[arg-type]
    return found


def test_a_home_is_written_to_and_left_as_it_was(home: Home) -> None:
    assert found_by("home", lambda: checks.place(home)).evidence == f"{home.root} can be written"
    assert [path.name for path in home.root.iterdir()] == ["identity.key"]


def test_a_home_that_is_not_there_can_be_made_or_not(tmp_path: Path) -> None:
    assert found_by("home", lambda: checks.place(Home(tmp_path / "a" / "b"))).result == "pass"
    (tmp_path / "file").write_text("")
    for name in ("file", "file/home"):
        found = found_by("home", partial(checks.place, Home(tmp_path / name)))
        assert found.result == "fail" and "--home DIR" in (found.remedy or ""), name


def test_a_home_on_a_full_disk_fails_with_what_to_do() -> None:
    found = found_by("home", lambda: checks.place(Home(Path("/proc"))))
    assert found.result == "fail" and found.remedy, "nobody can write a file there, not even root"


@pytest.mark.parametrize(
    ("free", "result"), [(0, "fail"), (999_999_999, "fail"), (1_000_000_000, "warn"), (2_000_000_000, "pass")]
)
def test_the_disk_has_to_hold_what_the_run_takes(home: Home, free: int, result: str) -> None:
    outcome = checks.disk(home, 10**9, lambda _: free)
    assert outcome.result == result
    assert "the run takes about 1.0 GB" in outcome.evidence and (outcome.remedy is None) == (result == "pass")


def test_what_a_run_takes_grows_with_its_model_and_with_what_is_missing(home: Home) -> None:
    sizes = {}
    for size in ("nano", "small"):
        goal = find_run(UpOptions(home=home.root, size=size), home, OWN)
        assert goal.manifest is not None
        sizes[size] = checks.needed_bytes(goal.manifest, home, None, keep=2)
    assert checks.LOGS_BYTES < sizes["nano"] < 0.2e9 < sizes["small"] < 2e9


def test_the_run_is_named_or_said_why_not(home: Home) -> None:
    found = subject(home)
    assert checks.run(found.goal, None, OWN).evidence == "shakespeare, tiny: what `murmur up` would train"
    wrongs: list[dict[str, object]] = [{"run": "absent.toml"}, {"join": ["murmur1abc"]}]
    for flags in wrongs:
        wrong = subject(home, "", flags)
        outcome = checks.run(wrong.goal, None, OWN)
        assert outcome.result == "fail" and outcome.remedy == failing(wrong.goal).remedy


def own_run(home: Home, folder: Path) -> Subject:
    from peer.cli import guarded, parser

    file = folder.with_name("run.toml")
    words = ["run", "init", "--data", str(folder), "-o", str(file), "--home", str(home.root)]
    arguments = vars(parser().parse_args(words))
    assert guarded(arguments.pop("command"), arguments) == 0
    return subject(home, "", {"run": str(file), "data": folder})


def test_data_is_here_changed_or_missing(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_bytes(b"to be or not to be. " * 400)
    (folder / "two.txt").write_bytes(b"that is the question. " * 400)
    found = own_run(home, folder)
    assert not isinstance(found.goal, MurmurError)
    manifest = found.goal.manifest
    assert manifest is not None

    def result(*, others: bool = False) -> Finding:
        return found_by("data", lambda: checks.data(manifest, home, folder, others=others))

    assert result().evidence == "texts, 2 shards, 17 kB, all here and as the run names it"
    for path in home.blobs.iterdir():
        path.unlink()
    (folder / "one.txt").write_bytes(b"to be or not to be! " * 400)
    changed = result()
    assert changed.result == "fail" and "one.txt is another text than the run's" in changed.evidence
    (folder / "one.txt").unlink()
    assert result(others=True).evidence.endswith("1 of them (8 kB) are not here, and come from peers")
    missing = result()
    assert missing.result == "fail" and "--data DIR" in (missing.remedy or "")
    (folder / "two.txt").unlink()
    empty = result()
    assert empty.result == "fail" and "holds no text" in empty.evidence


def test_missing_plays_are_got_by_a_command(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "PACKAGE", "no-such-package")
    goal = find_run(UpOptions(home=home.root), home, OWN)
    manifest = goal.manifest
    assert manifest is not None
    found = found_by("data", lambda: checks.data(manifest, home, None, others=False))
    assert found.result == "fail" and found.remedy == corpus.REMEDY


def test_the_lock_tells_whether_a_daemon_holds_the_home(home: Home) -> None:
    assert not is_held(home.lock)
    with hold(home.lock):
        assert is_held(home.lock)
        found = subject(home)
        assert found.held and found.status is None
        outcome = checks.daemon(found.status, found.silence, held=found.held)
        assert outcome.result == "fail" and "does not answer" in outcome.evidence
    assert not is_held(home.lock)
    home.api.write_text(json.dumps({"schema": 1, "port": 1, "token": "t", "pid": 1}))
    left = subject(home)
    assert checks.daemon(left.status, left.silence, held=left.held).result == "skipped", "a crash has left the file"


def test_peers_met_before_and_the_invitation_of_the_home_are_tried(home: Home) -> None:
    goal = find_run(UpOptions(home=home.root), home, OWN)
    book = AddressBook(home.addresses(goal.run))
    book.met(PeerId(OTHER.peer), [ADDRESS], member=True, now=1.0)
    book.save()

    async def ids(found: Subject) -> list[str]:
        made = Checks(found)
        try:
            return [each.id for each in made.all()]
        finally:
            await made.close()

    found = subject(home)
    assert found.met == (ADDRESS,)
    assert "join/1" not in asyncio.run(ids(found))
    joined = subject(home, "", {"join": [f"/dns4/a.example/tcp/1/p2p/{OTHER.peer}", ADDRESS]})
    listed = asyncio.run(ids(joined))
    assert [each for each in listed if each.startswith(("dns/", "join/"))] == ["dns/a.example", "join/1", "join/2"]
    assert len(set(listed)) == len(listed)


def test_a_damaged_book_of_addresses_disturbs_nothing(home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    goal = find_run(UpOptions(home=home.root), home, OWN)
    path = home.addresses(goal.run)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert subject(home).met == ()
    assert capfd.readouterr().err == ""
