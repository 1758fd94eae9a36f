"""Flag over environment over file over default: for every option, whatever its type."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from peer import cli, config
from peer.cli_config import text_of
from peer.config import Document, Option
from peer.config_table import NAMES, OPTIONS, up_options
from peer.options import UpOptions
from peer.paths import config_file
from protocols.errors import ConfigError

NOWHERE = Document(Path("/etc/murmur.toml"), exists=True, values={})
PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"
TEXTS: dict[str, list[str]] = {
    "home": ["/a", "/b/c"],
    "run": ["shakespeare", "abcd"],
    "size": ["nano", "base"],
    "data": ["/d", "/e"],
    "listen": ["127.0.0.1", "fd00::9"],
    "p2p_port": ["1", "65535"],
    "api_port": ["2", "80"],
    "rounds": ["3", "9"],
    "alone": ["true", "false"],
    "lan": ["true", "false"],
    "relay": ["true", "false"],
    "relay_port": ["4002", "65535"],
    "relay_bandwidth": ["1", "100"],
    "join": ["murmur1abc", PEER],
    "threads": ["1", "64"],
    "keep_checkpoints": ["2", "7"],
    "blob_cap": ["1", "2.5"],
    "json": ["true", "false"],
    "debug": ["true", "false"],
}
"""Values of each option as a person would say them."""


def said(option: Option, text: str) -> Any:
    """What a flag would have made of it, computed without the code under test."""
    if option.kind == "switch":
        return text == "true"
    return [option.parse(text)] if option.kind == "list" else option.parse(text)


def as_toml(option: Option, text: str) -> Any:
    if option.kind == "list":
        return [text]
    return json.loads(text) if text[0].isdigit() and text.count(".") < 2 or text in ("true", "false") else text


def test_the_table_has_every_option_of_a_daemon_once() -> None:
    known = {each.name: each for each in fields(UpOptions)}
    assert set(NAMES) == set(known) and len(NAMES) == len(known)
    assert set(TEXTS) == set(NAMES)
    for option in OPTIONS:
        if known[option.name].default is not MISSING:
            default = option.default()
            assert (tuple(default) if option.kind == "list" else default) == known[option.name].default


@given(some.data())
def test_the_nearest_of_four_places_wins_for_each_option(data: some.DataObject) -> None:
    chosen = {
        option.name: [data.draw(some.none() | some.sampled_from(TEXTS[option.name])) for _ in range(3)]
        for option in OPTIONS
    }
    flags = {option.name: said(option, text) for option in OPTIONS if (text := chosen[option.name][0])}
    environment = {option.variable: text for option in OPTIONS if (text := chosen[option.name][1])}
    values = {option.key: as_toml(option, text) for option in OPTIONS if (text := chosen[option.name][2])}
    found = config.resolve(OPTIONS, flags, environment, Document(NOWHERE.path, exists=True, values=values)).values
    for option in OPTIONS:
        places = zip(("flag", "environment", "file"), chosen[option.name], strict=True)
        origin, text = next(((origin, text) for origin, text in places if text), ("default", None))
        expected = option.default() if text is None else said(option, text)
        assert (found[option.name].origin, found[option.name].value) == (origin, expected), option.name


@given(some.fixed_dictionaries({name: some.none() | some.sampled_from(texts) for name, texts in TEXTS.items()}))
def test_what_show_prints_is_a_file_that_says_the_same(chosen: dict[str, str | None]) -> None:
    flags = {option.name: said(option, text) for option in OPTIONS if (text := chosen[option.name])}
    settings = config.resolve(OPTIONS, flags, {}, NOWHERE)
    again = tomllib.loads(text_of(settings, origin=True))
    reread = config.resolve(OPTIONS, {}, {}, Document(NOWHERE.path, exists=True, values=again))
    assert reread.plain() == settings.plain()


@pytest.mark.parametrize(
    ("text", "complaint", "remedy"),
    [
        ("p2p-port = 70000", "p2p-port: 70000 is not a port", "--p2p-port"),
        ("p2p-port = true", "is True, not one value", "up --help"),
        ("p2p_port = 1", "there is no option 'p2p_port'", "did you mean p2p-port?"),
        ("zzzz = 1", "there is no option 'zzzz'", "`murmur config show`"),
        ("alone = 1", "is 1, not true or false", "without quotes"),
        ('join = "murmur1a"', "is not a list of texts", 'join = ["'),
        ('join = ["banana"]', "neither an invitation", "may be repeated"),
        ('size = "huge"', "'huge' is none of nano, tiny, small, base", "choose"),
        ("blob-cap = -1", "not a number of gigabytes", "--blob-cap"),
        ("[up]\nthreads = 1", "there is no option 'up'", "remove the line"),
        ("threads = ", "is not TOML", "--config /dev/null"),
        ('home = ""', "the name of a folder is empty", "--home"),
    ],
)
def test_a_wrong_file_is_named_with_its_line_and_a_remedy(
    tmp_path: Path, text: str, complaint: str, remedy: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.resolve(OPTIONS, {}, {}, config.read(path, OPTIONS, named=False))
    assert str(path) in str(caught.value) and complaint in str(caught.value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("raw", [b"\xff", b"a" * (config.FILE_BYTES + 1), b"x = " + b"[" * 100_000])
def test_what_is_no_text_or_too_much_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match="config.toml"):
        config.read(path, OPTIONS, named=True)


def test_only_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert config.read(tmp_path / "absent", OPTIONS, named=False).exists is False
    with pytest.raises(ConfigError, match="no configuration file"):
        config.read(tmp_path / "absent", OPTIONS, named=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        config.read(tmp_path, OPTIONS, named=False)
    assert config.read(Path(os.devnull), OPTIONS, named=True).values == {}


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("MURMUR_ALONE", "perhaps", "neither true nor false"),
        ("MURMUR_THREADS", "-1", "MURMUR_THREADS: '-1' is not an integer of at least 0"),
        ("MURMUR_SIZE", "huge", "none of nano"),
        ("MURMUR_JOIN", "murmur1a banana", "neither an invitation"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match="MURMUR_") as caught:
        config.resolve(OPTIONS, {}, {variable: text}, NOWHERE)
    assert variable in str(caught.value) and complaint in str(caught.value) and caught.value.remedy


def test_an_empty_variable_says_nothing_and_a_list_takes_spaces_or_commas() -> None:
    found = config.resolve(OPTIONS, {}, {"MURMUR_THREADS": "", "MURMUR_JOIN": f"murmur1a, {PEER}"}, NOWHERE).values
    assert found["threads"].origin == "default"
    assert found["join"].value == ["murmur1a", PEER]


def test_paths_in_the_file_begin_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("")
    path = tmp_path / "config.toml"
    path.write_text('home = "peer"\ndata = "~/texts"\nrun = "mine.toml"\n')
    found = config.resolve(OPTIONS, {}, {}, config.read(path, OPTIONS, named=True)).plain()
    assert (found["home"], found["data"]) == (tmp_path / "peer", Path.home() / "texts")
    assert found["run"] == str(tmp_path / "mine.toml")


def test_an_error_says_where_the_option_it_names_was_set() -> None:
    file = Document(Path("/etc/murmur.toml"), exists=True, values={"size": "nano"})
    settings = config.resolve(OPTIONS, {"rounds": 3}, {"MURMUR_RUN": "x"}, file)
    error = ConfigError("--size is for an embedded run, and --rounds is not", remedy="leave out `--size`, or --run")
    settings.blame(error)
    assert error.remedy == (
        "leave out `--size`, or --run (--run is set by MURMUR_RUN; --size is set by /etc/murmur.toml)"
    )
    other = ConfigError("x", remedy="y")
    settings.blame(other)
    assert other.remedy == "y"


@pytest.mark.parametrize(
    ("flags", "environment", "values", "alone", "join"),
    [
        ({"join": ["murmur1a"]}, {}, {"alone": True}, False, ("murmur1a",)),
        ({"alone": True}, {"MURMUR_JOIN": "murmur1a"}, {}, True, ()),
        ({}, {"MURMUR_JOIN": "murmur1a"}, {"alone": True}, False, ("murmur1a",)),
        ({"alone": False}, {}, {"join": ["murmur1a"], "alone": True}, False, ("murmur1a",)),
    ],
)
def test_of_two_that_contradict_each_other_the_nearer_is_meant(
    flags: dict[str, Any], environment: dict[str, str], values: dict[str, Any], alone: bool, join: tuple[str, ...]
) -> None:
    file = Document(NOWHERE.path, exists=True, values=values)
    options = up_options(config.resolve(OPTIONS, flags, environment, file))
    assert (options.alone, options.join) == (alone, join)


def test_two_that_contradict_each_other_in_one_place_are_wrong() -> None:
    for flags, values in (({"alone": True, "join": ["murmur1a"]}, {}), ({}, {"alone": True, "join": ["murmur1a"]})):
        settings = config.resolve(OPTIONS, flags, {}, Document(NOWHERE.path, exists=True, values=values))
        with pytest.raises(ConfigError, match="--alone"):
            up_options(settings)


def test_a_slip_in_a_variable_s_name_is_told() -> None:
    told = config.strangers({"MURMUR_THREAD": "1", "MURMUR_HOME": "/", "MURMUR_CONFIG": "", "PATH": ""}, OPTIONS)
    assert told == ["MURMUR_THREAD is no option of `murmur up`: did you mean MURMUR_THREADS?"]


def test_a_daemon_of_a_swarm_takes_nothing_from_the_person_s_configuration() -> None:
    left = config.unset(OPTIONS, {"MURMUR_ALONE": "1", "MURMUR_CONFIG": "/x", "PATH": "/bin", "MURMUR_OTHER": "1"})
    assert left == {"PATH": "/bin", "MURMUR_OTHER": "1", "MURMUR_CONFIG": "/dev/null"}


def parse(*arguments: str) -> dict[str, Any]:
    return dict(vars(cli.parser().parse_args(arguments)))


def test_every_command_with_a_home_finds_it_in_the_same_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    path.write_text('home = "from-file"\ndebug = true\nthreads = 5\n')
    for command in ("up", "status", "stop", "invite", "log", "paths", "config show", "key show"):
        words = command.split()
        assert parse(*words, "--config", str(path))["home"] == tmp_path / "from-file"
        assert parse(*words, "--config", str(path))["debug"] is True
        monkeypatch.setenv("MURMUR_HOME", str(tmp_path / "from-variable"))
        assert parse(*words, "--config", str(path))["home"] == tmp_path / "from-variable"
        assert parse(*words, "--home", "/flag")["home"] == Path("/flag")
        monkeypatch.delenv("MURMUR_HOME")
    monkeypatch.setenv("MURMUR_CONFIG", str(path))
    assert parse("up")["threads"] == 5 and parse("up", "--threads", "0")["threads"] == 0
    assert parse("up", "--no-json")["json"] is False


def test_debug_is_one_flag_before_or_behind_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("status",), ("run", "show", "x"), ("swarm",), ("up",)):
        assert parse("--debug", *command)["debug"] is parse(*command, "--debug")["debug"] is True
        assert parse(*command)["debug"] is False
        monkeypatch.setenv("MURMUR_DEBUG", "1")
        assert parse(*command)["debug"] is True
        monkeypatch.delenv("MURMUR_DEBUG")


def test_the_file_lies_where_the_platform_keeps_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file() == tmp_path / "murmur" / "config.toml"
    monkeypatch.delenv("MURMUR_CONFIG")
    config_file().parent.mkdir()
    config_file().write_text("rounds = 4")
    assert parse("up")["rounds"] == 4


def test_show_says_where_each_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text("blob-cap = 2.5\n")
    monkeypatch.setenv("MURMUR_THREADS", "3")
    arguments = parse("config", "show", "--origin", "--config", str(path), "--rounds", "7", "--home", "/h")
    assert cli.guarded(arguments.pop("command"), arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"# {path}"
    shown = {line.partition("=")[0].strip(): line.split() for line in lines[1:]}
    assert shown["blob-cap"] == ["blob-cap", "=", "2.5", "#", "file"]
    assert shown["threads"] == ["threads", "=", "3", "#", "MURMUR_THREADS"]
    assert shown["rounds"] == ["rounds", "=", "7", "#", "--rounds"]
    assert shown["listen"] == ["listen", "=", '"0.0.0.0"', "#", "default"]
    assert shown["# run"] == ["#", "run", "=", "#", "default"]
    arguments = parse("config", "show", "--json", "--config", str(path))
    assert cli.guarded(arguments.pop("command"), arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1 and document["file"] == {"path": str(path), "exists": True}
    by_name = {each["name"]: each for each in document["options"]}
    assert by_name["blob-cap"] == {"name": "blob-cap", "value": 2.5, "origin": "file", "from": str(path)}
    assert by_name["run"]["value"] is None and by_name["json"]["value"] is False


def test_paths_names_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "identity.key").write_bytes(b"")
    arguments = parse("paths", "--home", str(tmp_path))
    assert cli.guarded(arguments.pop("command"), arguments) == 0
    text = capsys.readouterr().out
    assert f"key       {tmp_path / 'identity.key'}\n" in text
    assert f"log       {tmp_path / 'murmur.log'}  (not there yet)\n" in text
    arguments = parse("paths", "--json", "--home", str(tmp_path))
    assert cli.guarded(arguments.pop("command"), arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["key"] == {"path": str(tmp_path / "identity.key"), "exists": True}
    assert document["config"] == {"path": os.devnull, "exists": True}
