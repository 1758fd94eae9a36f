"""The yardstick of the benchmark of rounds: one ``hivemind.DecentralizedAverager`` in a process of its own.

Reads JSON lines on its standard input and answers in JSON lines. Timed is ``_aggregate_with_group``: the all-reduce in
a group that is found already.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import json
import multiprocessing as mp
import sys
import time
import warnings
from typing import Any

import hivemind
import numpy as np
import psutil
import torch
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.compression import NoCompression, Uniform8BitQuantization
from hivemind.compression.quantization import Quantization

MATCHMAKING_S = 2.0


class Mended(Uniform8BitQuantization):  # type: ignore[misc] # untyped
    """As hivemind 1.1.12 has it, but that numpy 2.4 makes no int of an array of one: its ``extract`` raises there."""

    def extract(self, serialized_tensor: Any) -> torch.Tensor:
        """See ``Quantization.extract``, of which only the first line is another."""
        data = serialized_tensor.buffer
        size = int.from_bytes(data[:8], "little")
        codebook = np.frombuffer(data, offset=8, count=size, dtype=self.codebook_dtype)
        quantized = np.frombuffer(data, offset=8 + codebook.nbytes, dtype=self.indices_dtype)
        indices = torch.as_tensor(quantized, dtype=torch.int64).reshape(tuple(serialized_tensor.size))
        values = torch.as_tensor(codebook).to(dtype=getattr(torch, serialized_tensor.dtype))
        return values[indices].requires_grad_(serialized_tensor.requires_grad)


class Timed(DecentralizedAverager):  # type: ignore[misc] # untyped
    """Notes when the all-reduce began and ended, and the CPU seconds of this process and p2pd meanwhile."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.noted = mp.get_context("fork").Array("d", 4)
        super().__init__(*args, **options)

    async def _aggregate_with_group(self, *args: Any, **options: Any) -> Any:
        start, used, wire = time.monotonic(), time.process_time(), _p2pd_seconds()
        try:
            return await super()._aggregate_with_group(*args, **options)
        finally:
            self.noted[:] = [start, time.monotonic(), time.process_time() - used, _p2pd_seconds() - wire]


CODECS = {"float32": NoCompression, "int8": Mended}


def _p2pd() -> psutil.Process:
    """The p2pd that belongs to this averager: a child of the process of its DHT."""
    parent = psutil.Process().parent()
    assert parent is not None
    return next(each for each in parent.children(recursive=True) if each.name() == "p2pd")


def _p2pd_seconds() -> float:
    times = _p2pd().cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Number, how many there are, values, codec."""
    number, peers, values, codec = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
    first = json.loads(sys.stdin.readline())["addresses"]
    Quantization.extract = Mended.extract  # whoever receives takes its own from a table of classes
    dht = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=first, start=True)
    tensor = torch.zeros(values)
    averager = Timed(
        [tensor], dht, prefix="bench", target_group_size=peers, min_group_size=peers, start=True,
        min_matchmaking_time=MATCHMAKING_S, request_timeout=1.0, compression=CODECS[codec](),
        tensor_infos=None, allow_state_sharing=False,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(number)
    p2pd = next(each for each in psutil.Process().children(recursive=True) if each.name() == "p2pd")
    flags = [each for each in p2pd.cmdline()[1:] if "/" not in each]
    _say("up", addresses=[str(each) for each in dht.get_visible_maddrs()], flags=flags)
    for line in sys.stdin:
        what = json.loads(line)["what"]
        if what == "fill":
            with averager.get_tensors() as tensors:
                tensors[0].normal_(0.0, 0.01, generator=draw)
            _say("filled")
        elif what == "go":
            averager.step(timeout=60)
            with averager.get_tensors() as tensors:
                mean = float(tensors[0].double().pow(2).mean())
            start, end, used, wire = averager.noted[:]
            _say("averaged", start=start, end=end, cpu=used, p2pd=wire, square=mean)
    averager.shutdown()
    dht.shutdown()


def _say(what: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"what": what, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__" and len(sys.argv) > 1:  # round.py starts it
    main()
