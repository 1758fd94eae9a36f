"""Every decoder under changed inputs: unexpected exceptions, CPU time of a call, bytes set aside beside the limit.

Prints three JSON lines a decoder. `exceptions/…` counts inputs, of 100,000, that raised what is not declared, bound 0;
`time/…` is the longest call in ms of CPU, bound 50; `memory/…` the largest share of the declared limit that a sampled
call had set aside, bound 1. With `--atheris SECONDS` the same table runs under coverage guidance instead, until the
first exception or the end (needs `pip install -e .[fuzz]`, which need not be the environment of everything else).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from tests.fuzzing.decoder import Decoder

COUNT = {False: 100_000, True: 150}
SAMPLED = 50
"""One input in so many is decoded again with its memory watched."""
CPU_MS = 50.0
SHOWN = 3
"""Inputs that raised, on stderr, of each decoder."""
CORPUS_BYTES = 20_000


def fuzz(decoder: Decoder, count: int, seed: int) -> list[dict[str, Any]]:
    """The three lines of one decoder."""
    from tests.fuzzing.mutation import bombs, mutate

    draw, failed, worst, share = Random(seed), 0, 0.0, 0.0
    for example in decoder.examples:
        decoder.take(example)  # warm: what it needs is loaded
    gc.freeze()  # as in the daemon: collecting what is loaded for good would count as somebody's time
    inputs = bombs(min(decoder.limit, 70_000))
    for number in range(-len(inputs), count):
        raw = inputs[number] if number < 0 else mutate(draw, decoder.examples, decoder.limit)
        started = time.process_time()
        try:
            decoder.take(raw)
        except Exception as error:
            failed += 1
            if failed <= SHOWN:
                sys.stderr.write(f"{decoder.name}: {error!r}: {raw[:400]!r} ({len(raw)} bytes)\n")
            continue
        worst = max(worst, time.process_time() - started)
        if number < 0 or number % SAMPLED == 0:
            # Twice: a bounded cache that is copied while it changes is not this input's doing.
            share = max(share, min(decoder.peak(raw), decoder.peak(raw)) / decoder.allowed(raw))
    return [
        line(f"exceptions/{decoder.name}", failed, "inputs", 0),
        line(f"time/{decoder.name}", 1000 * worst, "ms", CPU_MS),
        line(f"memory/{decoder.name}", share, "of the limit", 1.0),
    ]


def line(case: str, value: float, unit: str, bound: float) -> dict[str, Any]:
    """A benchmark's line; there is nobody to compare with."""
    return {
        "schema": 1, "bench": "fuzz", "case": case, "value": round(value, 4), "unit": unit, "against": None,
        "ratio": None, "better": "lower", "bound": bound, "ok": value <= bound, "runs": 1, "spread": [value, value],
    }  # fmt: skip


def guided(seconds: int, corpus: Path) -> None:
    """Coverage-guided: the first byte of an input chooses the decoder. Ends the process.

    ``corpus`` keeps the inputs that led further, and the one that broke something.
    """
    import atheris

    with atheris.instrument_imports(include=["protocols", "peer", "dht"]):
        from tests.fuzzing.decoders import table
    decoders = table()

    def one(data: bytes) -> None:
        if data:
            decoder = decoders[data[0] % len(decoders)]
            decoder.take(data[1 : 1 + decoder.limit])

    corpus.mkdir(parents=True, exist_ok=True)
    for number, decoder in enumerate(decoders):
        for place, example in enumerate(decoder.examples):
            (corpus / f"{number}-{place}").write_bytes(bytes([number]) + example)
    flags = [f"-max_total_time={seconds}", f"-max_len={CORPUS_BYTES}", "-timeout=10", "-rss_limit_mb=3000"]
    atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={corpus}/", str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    """Run the decoders asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="inputs of each decoder; 0 = 100,000")
    parser.add_argument("--case", action="append", default=[], help="decoders by name; left out: all")
    parser.add_argument("--atheris", type=int, default=0, metavar="SECONDS", help="coverage-guided, for so long")
    parser.add_argument("--corpus", type=Path, help="with --atheris: a folder to go on from")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.atheris:
        guided(given.atheris, given.corpus or Path(tempfile.mkdtemp(prefix="murmur-corpus-")))
    from tests.fuzzing.decoders import table

    for decoder in table():
        if not given.case or decoder.name in given.case:
            for found in fuzz(decoder, given.count or COUNT[given.quick], given.seed):
                sys.stdout.write(json.dumps({**found, "seed": given.seed, "quick": given.quick}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
