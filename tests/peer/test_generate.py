"""A sample of the newest sealed model: what the model expects, the same for the same seed, with a daemon or without."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from peer import client_live
from peer.cli import parser
from peer.cli_generate import Wish, generate
from peer.exits import Exit, NoDaemon
from peer.models import initial_vector
from peer.models.gpt import GPT, load_flat
from peer.paths import Home
from peer.sampling import sample
from protocols.errors import ConfigError, EnvironmentFault
from tests.peer.sealed_home import sealed_home

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = b"Enter the ghost of a king, and a very long line of words before it"


def model() -> GPT:
    torch.set_num_threads(1)  # on a busy machine threads that wait for each other crawl
    made = GPT("nano", 32)
    load_flat(made, initial_vector("nano", 32, 1))
    return made


def drawn(temperature: float, seed: int, count: int = 40) -> list[int]:
    return list(itertools.islice(sample(model(), BEGINNING, context=32, temperature=temperature, seed=seed), count))


def test_without_temperature_each_byte_is_the_likeliest_after_the_last_32() -> None:
    seen, made = list(BEGINNING), model()
    for got in drawn(0.0, 0):
        with torch.inference_mode():
            logits = made(torch.tensor([seen[-32:]]))[0, -1]
        assert got == int(logits.argmax())
        seen.append(got)


def test_a_seed_gives_its_sample_and_another_seed_another() -> None:
    assert drawn(1.0, 7) == drawn(1.0, 7) != drawn(1.0, 8)


def test_bytes_come_as_often_as_the_model_expects_them() -> None:
    with torch.inference_mode():
        expected = torch.softmax(model()(torch.tensor([list(BEGINNING[-32:])]))[0, -1].double() / 0.5, 0).numpy()
    made = model()
    firsts = [next(sample(made, BEGINNING, context=32, temperature=0.5, seed=seed)) for seed in range(400)]
    counts = np.bincount(firsts, minlength=256)
    cells = np.argsort(expected)[-8:]
    share = counts[cells].sum() / 400
    want = float(expected[cells].sum())
    assert abs(share - want) < 4 * np.sqrt(want * (1 - want) / 400)


def wish(home: Home, **changes: Any) -> Wish:
    given: dict[str, Any] = {"text": "Enter ", "run": None, "bytes": 30, "temperature": 0.8, "seed": 3, "json": True}
    return Wish(home=home, **{**given, **changes})


def test_the_newest_sealed_model_goes_on_with_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.trainer.be_polite", lambda: None)  # niceness would stay with the test's process
    made = sealed_home(tmp_path)
    assert generate(wish(made.home)) == Exit.DONE
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["round"], said["seed"], said["prompt"]) == (1, 2, 3, "Enter ")
    assert said["run"] == made.store.folder.name
    assert generate(wish(made.home, json=False)) == Exit.DONE
    out, err = capsys.readouterr()
    assert out == f"Enter {said['text']}\n"
    assert err == "[shakespeare, sealed round 2, seed 3]\n"
    with pytest.raises(ConfigError, match="at most"):
        generate(wish(made.home, text="x" * 5000))
    with pytest.raises(EnvironmentFault, match="no sealed round"):
        generate(wish(Home(tmp_path / "nobody")))


@pytest.mark.parametrize("flags", [["--bytes=0"], ["--bytes=4097"], ["--temperature=-1"], ["--temperature=nan"]])
def test_what_cannot_be_sampled_is_refused_before_anything_is_loaded(flags: list[str]) -> None:
    with pytest.raises(ConfigError):
        parser().parse_args(["generate", "x", *flags])


@pytest.mark.parametrize("act", ["watch", "show_peers", "resume", "finish"])
def test_without_a_daemon_every_command_says_so(tmp_path: Path, act: str) -> None:
    with pytest.raises(NoDaemon, match="no daemon is running"):
        getattr(client_live, act)(Home(tmp_path), as_json=False)
    with pytest.raises(NoDaemon):
        client_live.pause(Home(tmp_path), 60.0, as_json=False)
