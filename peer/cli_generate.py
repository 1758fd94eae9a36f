"""``murmur generate``: a sample of the newest sealed model, in a process of its own, so that training goes on."""

from __future__ import annotations

import codecs
import itertools
import json
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import ConfigError, EnvironmentFault, LocalError

from . import client
from .exits import Exit
from .stored import newest, stored_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .paths import Home

LONGEST_BEGINNING = 4096


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for: so many ``bytes`` after ``text``."""

    home: Home
    text: str
    run: str | None
    bytes: int
    temperature: float
    seed: int | None
    json: bool


def generate(wish: Wish) -> Exit:
    """Print the sample as it comes; raises ConfigError, EnvironmentFault (nothing sealed here yet)."""
    beginning = wish.text.encode() or b"\n"
    if len(beginning) > LONGEST_BEGINNING:
        text = f"TEXT has {len(beginning)} bytes, at most {LONGEST_BEGINNING} are taken"
        raise ConfigError(text, remedy="give a shorter beginning")
    manifest, store = stored_run(wish.home, wish.run or _served(wish.home))
    checkpoint = newest(store)
    seed = secrets.randbits(32) if wish.seed is None else wish.seed % (1 << 64)
    from .trainer import be_polite, prepare_torch

    prepare_torch(1)
    be_polite()
    from .models.gpt import GPT, load_flat
    from .sampling import sample

    model = GPT(manifest.model.size, manifest.model.context)
    load_flat(model, checkpoint.params)
    drawn = sample(model, beginning, context=manifest.model.context, temperature=wish.temperature, seed=seed)
    pieces = readable(itertools.islice(drawn, wish.bytes))
    about = f"{manifest.run.name}, sealed round {checkpoint.head.round}, seed {seed}"
    print(f"[{about}]", file=sys.stderr)
    if wish.json:
        text = "".join(pieces)
        head = {"schema": 1, "run": store.folder.name, "round": checkpoint.head.round, "seed": seed}
        print(json.dumps({**head, "prompt": wish.text, "text": text}))
        return Exit.DONE
    sys.stdout.write(wish.text)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
    return Exit.DONE


def readable(drawn: Iterable[int]) -> Iterator[str]:
    """UTF-8 as it becomes whole. What could steer a terminal is replaced: strangers have trained this model too."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for each in drawn:
        yield _shown(decoder.decode(bytes([each])))
    yield _shown(decoder.decode(b"", final=True))


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)


def _served(home: Home) -> str | None:
    """The run that the daemon of this home serves just now; None: none runs."""
    try:
        run = client.request(home, "GET", "/api/v1/status").get("run")
    except (LocalError, EnvironmentFault):
        return None
    return run.get("id") if isinstance(run, dict) else None
