"""Manifests: round trip, canonical form, signatures, and the refusal of every broken key."""

from __future__ import annotations

import copy
import tomllib
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import tomli_w
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protocols.compression import CODECS, RESULT_CODECS
from protocols.errors import ConfigError
from protocols.ids import PROTOCOL, peer_id
from protocols.manifest import Manifest, ShardEntry, Window, render, run_id, sign, to_plain, verify
from protocols.manifest_defaults import CONTEXTS, Choices, default_manifest
from protocols.manifest_text import parse, parse_unsigned
from protocols.rules import RULES

KEY = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
FOUNDER = peer_id(KEY.public_key().public_bytes_raw())
STRANGER_KEY = Ed25519PrivateKey.from_private_bytes(b"\x02" * 32)
STRANGER = peer_id(STRANGER_KEY.public_key().public_bytes_raw())
SHARDS = (
    ShardEntry("hamlet", 5, blake3(b"to be").hexdigest()),
    ShardEntry("sub/lear", 7, blake3(b"nothing").hexdigest()),
)

SEEDS = st.binary(min_size=32, max_size=32)
KEYS = SEEDS.map(Ed25519PrivateKey.from_private_bytes)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,63}", fullmatch=True)


def example() -> Manifest:
    return default_manifest(Choices(), founders=[FOUNDER], shards=SHARDS)


def signed() -> Manifest:
    return sign(example(), FOUNDER, KEY.sign)


def plain() -> dict[str, Any]:
    return tomllib.loads(render(signed()))


def keys(tree: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every key of the manifest, sections and those inside them."""
    inner = [(name, key) for name, section in tree.items() if isinstance(section, dict) for key in section]
    return [*((name,) for name in tree), *inner]


def parent(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    return tree if len(path) == 1 else tree[path[0]]


ALL_KEYS = keys(plain())


@st.composite
def manifests(draw: st.DrawFn) -> tuple[Manifest, Ed25519PrivateKey]:
    founders = draw(st.lists(KEYS, min_size=1, max_size=3, unique_by=lambda key: key.private_bytes_raw()))
    peers = [peer_id(key.public_key().public_bytes_raw()) for key in founders]
    ids = draw(
        st.lists(st.text("abc é'\"/#=x", min_size=1, max_size=9).filter(lambda i: i[0] != "/"), min_size=1, unique=True)
    )
    shards = [ShardEntry(name, draw(st.integers(1, 1 << 50)), blake3(name.encode()).hexdigest()) for name in ids]
    choices = Choices(
        name=draw(NAMES),
        data=draw(NAMES),
        seed=draw(st.integers(0, 2**63 - 1)),
        rounds=draw(st.integers(0, 10**9)),
        size=draw(st.sampled_from(sorted(CONTEXTS))),
        steps=draw(st.integers(1, 10**6)),
        codec=draw(st.sampled_from(CODECS)),
        rule=draw(st.sampled_from(RULES)),
        probation=draw(st.integers(0, 10**6)),
    )
    return default_manifest(choices, founders=peers, shards=shards), founders[0]


@given(manifests())
def test_text_round_trip_keeps_everything(drawn: tuple[Manifest, Ed25519PrivateKey]) -> None:
    manifest, key = drawn
    assert parse(render(manifest)) == manifest
    both = sign(manifest, manifest.members.founders[0], key.sign)
    again = parse(render(both))
    assert again == both
    assert verify(again) == manifest.members.founders[0]
    assert run_id(again) == run_id(manifest)
    assert render(again) == render(both)


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(item) for item in value] if isinstance(value, list) else value


def test_run_id_is_blake3_of_sorted_msgpack_without_the_signature() -> None:
    tree = plain()
    del tree["signature"]
    expected = blake3(msgpack.packb(_sorted_keys(tree))).digest()
    assert run_id(signed()) == run_id(example()) == expected


def test_run_id_is_pinned() -> None:
    """A change here splits every existing run: it needs a new schema or protocol number."""
    assert run_id(example()).hex() == "9bf4d0220195b24d943b0b1f126c50fcd7f000a2e418ba5c530eeec8d12c1a28"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("8e-3", "0.008"),
        ("0.0080", "0.008"),
        ("8E-3", "0.008"),
        ("0.008", "0.008"),
        ("1", "1"),
        ("1.0", "1"),
        ("1e+0", "1"),
    ],
)
def test_rates_are_normalised(written: str, canonical: str) -> None:
    tree = plain()
    del tree["signature"]
    tree["inner"]["lr"] = written
    manifest = parse(tomli_w.dumps(tree))
    assert manifest.inner.lr == canonical
    assert run_id(manifest) == run_id(replace(example(), inner=replace(example().inner, lr=canonical)))


def test_fractions_are_reduced() -> None:
    tree = plain()
    del tree["signature"]
    tree["rule"]["tolerated"] = "2/6"
    assert parse(tomli_w.dumps(tree)).rule.tolerated == "1/3"


@pytest.mark.parametrize("path", ALL_KEYS, ids=".".join)
def test_a_missing_key_is_named(path: tuple[str, ...]) -> None:
    tree = plain()
    del parent(tree, path)[path[-1]]
    if path == ("signature",):
        assert parse(tomli_w.dumps(tree)) == example()
        return
    with pytest.raises(ConfigError) as caught:
        parse(tomli_w.dumps(tree))
    assert path[-1] in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("section", [(), *((name,) for name in plain() if name != "schema")], ids=str)
def test_an_unknown_key_is_named(section: tuple[str, ...]) -> None:
    tree = plain()
    (tree[section[0]] if section else tree)["surprise"] = 1
    with pytest.raises(ConfigError, match=r"surprise is unknown") as caught:
        parse(tomli_w.dumps(tree))
    assert "update murmur" in caught.value.remedy


def test_an_unknown_key_in_a_shard_is_named() -> None:
    tree = plain()
    tree["data"]["shards"][0]["surprise"] = 1
    with pytest.raises(ConfigError, match="surprise"):
        parse(tomli_w.dumps(tree))


WRONG = st.one_of(
    st.none().map(lambda _: {}),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=True),
    st.text("0123456789abc./-e%\x7f", max_size=12),
    st.lists(st.integers(0, 3), max_size=3),
    st.just({"a": 1}),
)


@given(st.sampled_from(ALL_KEYS), WRONG)
def test_no_change_of_a_value_passes_the_signature(path: tuple[str, ...], value: Any) -> None:
    """Whatever a key is set to, the manifest is refused, or means exactly what was signed."""
    tree = plain()
    parent(tree, path)[path[-1]] = copy.deepcopy(value)
    try:
        manifest = parse(tomli_w.dumps(tree))
    except ConfigError as error:
        assert error.remedy
    else:
        assert manifest == signed()


OUT_OF_RANGE = [
    ("run", "name", "Ham Let"), ("run", "seed", -1), ("run", "rounds", -1), ("model", "size", "huge"),
    ("model", "kind", "eval"), ("model", "context", 1), ("data", "held_out", "0.6"), ("data", "held_out", "nan"),
    ("data", "deal", "own"), ("data", "shards", []), ("round", "steps", 0), ("round", "deadline", 5),
    ("round", "seconds", 30), ("inner", "lr", 0.008), ("inner", "lr", "0"), ("inner", "lr", "-1"),
    ("inner", "lr", "inf"),
    ("inner", "betas", ["0.9"]), ("inner", "betas", ["0.9", "1"]), ("inner", "batch", 0), ("inner", "reset", 1),
    ("inner", "warmup", True), ("outer", "momentum", "1"), ("codec", "update", "pickle"), ("codec", "block", 48),
    ("codec", "result", "int4"), ("codec", "result", "zip"),
    ("codec", "error_feedback", "1.1"), ("rule", "name", "krum"), ("rule", "tolerated", "1/2"),
    ("rule", "tolerated", "0.3"), ("members", "founders", []), ("members", "founders", ["12D3KooW"]),
    ("members", "founders", [FOUNDER, FOUNDER]), ("members", "probation", -1), ("cells", "list", ["stage/1"]),
    ("cells", "list", []),
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "value"), OUT_OF_RANGE)
def test_a_wrong_value_is_named(section: str, key: str, value: Any) -> None:
    tree = plain()
    del tree["signature"]
    tree[section][key] = value
    with pytest.raises(ConfigError) as caught:
        parse(tomli_w.dumps(tree))
    assert f"[{section}]" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("key", "value"),
    [("id", "../secret"), ("id", "/etc/passwd"), ("id", "a\x00b"), ("bytes", 0), ("hash", "00"), ("hash", "A" * 64)],
)
def test_a_wrong_shard_is_refused(key: str, value: Any) -> None:
    tree = plain()
    tree["data"]["shards"][0][key] = value
    with pytest.raises(ConfigError, match="shards"):
        parse(tomli_w.dumps(tree))


def test_two_shards_of_one_name_are_refused() -> None:
    tree = plain()
    tree["data"]["shards"][1]["id"] = "hamlet"
    with pytest.raises(ConfigError, match="twice"):
        parse(tomli_w.dumps(tree))


@pytest.mark.parametrize(("section", "key"), [("", "schema"), ("run", "protocol")])
def test_a_newer_version_is_one_clear_error(section: str, key: str) -> None:
    tree = plain()
    (tree[section] if section else tree)[key] = PROTOCOL + 1
    tree["run"]["invented_later"] = True  # must not be what the error talks about
    with pytest.raises(ConfigError, match=key) as caught:
        parse(tomli_w.dumps(tree))
    assert "update murmur" in caught.value.remedy


def test_seconds_take_the_place_of_steps() -> None:
    manifest = replace(example(), round=Window(seconds=60, deadline=120))
    assert "steps" not in to_plain(manifest)["round"]  # type: ignore[operator]
    assert parse(render(manifest)) == manifest
    with pytest.raises(ConfigError, match="deadline"):
        parse(render(replace(example(), round=Window(seconds=60, deadline=59))))


@pytest.mark.parametrize("text", ["", "schema = ", "[run", "a = " + "[" * 5000, "\x00", "x = 1\n" * 200_000])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="manifest: ") as caught:
        parse(text)
    assert len(str(caught.value)) < 300


def test_only_a_founder_signs() -> None:
    with pytest.raises(ConfigError, match="not among"):
        sign(example(), STRANGER, STRANGER_KEY.sign)
    with pytest.raises(ConfigError, match="not signed"):
        verify(example())


def test_a_stranger_s_signature_is_refused() -> None:
    manifest = replace(signed(), members=replace(signed().members, founders=(STRANGER,)))
    with pytest.raises(ConfigError, match="not a founder"):
        parse(render(manifest))


def test_a_change_after_signing_is_refused_and_signing_anew_mends_it() -> None:
    changed = replace(signed(), run=replace(signed().run, seed=7))
    with pytest.raises(ConfigError, match="changed after signing"):
        parse(render(changed))
    mended = sign(parse_unsigned(render(changed)), FOUNDER, KEY.sign)
    assert parse(render(mended)).run.seed == 7


def test_a_signature_for_another_manifest_is_refused() -> None:
    other = sign(replace(example(), run=replace(example().run, seed=1)), FOUNDER, KEY.sign)
    with pytest.raises(ConfigError, match="does not fit"):
        parse(render(replace(example(), signature=other.signature)))


@pytest.mark.parametrize("update", CODECS)
def test_updates_may_be_int4_results_may_not(update: str) -> None:
    manifest = default_manifest(Choices(codec=update), founders=[FOUNDER], shards=SHARDS)
    assert manifest.codec.update == update
    tree = tomllib.loads(render(manifest))
    tree["codec"]["result"] = "int4"
    with pytest.raises(ConfigError, match=r"\[codec\] result is int4, too coarse .* results are float32, bf16, int8;"):
        parse(tomli_w.dumps(tree))
    for fine in RESULT_CODECS:
        tree["codec"]["result"] = fine
        assert parse(tomli_w.dumps(tree)).codec.result == fine


def test_a_choice_that_is_not_built_in_is_refused() -> None:
    with pytest.raises(ConfigError, match="huge"):
        default_manifest(Choices(size="huge"), founders=[FOUNDER], shards=SHARDS)
    with pytest.raises(ConfigError, match=r"\[codec\] update"):
        default_manifest(Choices(codec="zip"), founders=[FOUNDER], shards=SHARDS)
