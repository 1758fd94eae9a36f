"""The doctor on this machine: clock, GPU and driver, torch, p2pd, and what a lighthouse needs."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dht.p2pd import find_binary

from .doctor_report import Outcome, failed, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

TORCH_S = 60.0
"""Torch is loaded from a cold disk in that time."""
PROGRAM_S = 10.0
OUTPUT_BYTES = 1 << 20
"""Of a program's output; what more it says is not read."""
FIRST_DAY = 1_735_689_600.0
"""1 January 2025, unix seconds: no sound clock was ever before it while this software existed."""
PCI = Path("/sys/bus/pci/devices")
SET_CLOCK = "set this machine's clock: `timedatectl set-ntp true`"
REINSTALL = "install murmuration again, in an environment of its own"
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_TORCH = """
import os; os.nice(19)
import json, torch
there = torch.cuda.is_available()
found = "cuda" if there else "cpu"
sound = float((torch.ones(8, 8, device=found) @ torch.ones(8, 8, device=found)).sum()) == 512.0
name = torch.cuda.get_device_name() if there else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "device": name, "sound": sound}))
"""


async def output(command: Sequence[str], within: float) -> tuple[int, str]:
    """Exit code of a program, and what it said on both streams; it is killed where it takes longer.

    Raises OSError when it cannot be started, TimeoutError.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # its own children end with it
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(within):
            said = bytearray()
            while len(said) < OUTPUT_BYTES and (more := await process.stdout.read(1 << 16)):
                said += more
            code = await process.wait() if len(said) < OUTPUT_BYTES else -1
        return code, said.decode(errors="replace")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def torch(command: Sequence[str] = (sys.executable, "-c", _TORCH), within: float = TORCH_S) -> dict[str, Any]:
    """What torch says of itself, asked in a process of its own; raises OSError, TimeoutError, ValueError."""
    code, said = await output(command, within)
    lines = said.strip().splitlines() or ["nothing"]
    try:
        answer = json.loads(lines[-1]) if code == 0 else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ValueError(f"it ended with {code}, saying: {lines[-1][:300]}")
    return answer


async def trainer(asked: Awaitable[dict[str, Any]]) -> Outcome:
    """Whether the library that trains can be loaded and computes; ``asked`` gives what ``torch`` returns."""
    try:
        answer = await asked
    except TimeoutError:
        return failed(f"torch was not loaded after {TORCH_S:.0f} s", "the disk or the machine is busy: try again")
    except (OSError, ValueError) as error:
        return failed(f"torch cannot be used: {error}", REINSTALL)
    if not answer["sound"]:
        return failed(f"torch {answer['version']} computes wrongly", "the processor or the GPU is damaged or too hot")
    return passed(f"torch {answer['version']}, computes on {answer['device'] or 'the processor'}")


async def gpu(asked: Awaitable[dict[str, Any]], cards: int, program: str | None) -> Outcome:
    """Whether a GPU is used, where there is one: ``cards`` of NVIDIA in the machine, ``program`` = nvidia-smi."""
    if program is None:
        if not cards:
            return skipped("no NVIDIA GPU or driver here: this machine trains on its processor")
        return warned(
            f"{cards} NVIDIA card{'s' * (cards > 1)} and no driver: the GPU lies idle",
            "install NVIDIA's driver, then set murmuration up again",
        )
    query = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    code, said = await output([program, *query], PROGRAM_S)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code or not lines:
        why = lines[0] if lines else f"nvidia-smi ended with {code}"
        return warned(
            f"the NVIDIA driver does not work: {why[:200]}", "restart the machine, or install the driver again"
        )
    card = f"{lines[0]}" + (f" and {len(lines) - 1} more" if len(lines) > 1 else "")
    try:
        answer = await asked
    except (TimeoutError, OSError, ValueError):
        return passed(f"{card}; whether torch uses it is not known")
    if answer["device"]:
        return passed(f"{card}, used by torch (CUDA {answer['cuda']})")
    build = f"torch is built for CUDA {answer['cuda']}" if answer["cuda"] else "torch is a build for processors only"
    return warned(
        f"{card}, and {build}: the GPU lies idle", "install a torch that fits the driver: `make TORCH='torch'`"
    )


def cards(devices: Path = PCI) -> int:
    """NVIDIA's graphics cards on the PCI bus; 0 where that cannot be seen."""
    found = 0
    for device in devices.glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        found += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return found


def nvidia_smi() -> str | None:
    """The driver's own program."""
    return shutil.which("nvidia-smi")


async def p2pd(binary: Path | None = None) -> Outcome:
    """Whether the program that carries all connections can be run; raises EnvironmentFault when it is not there."""
    binary = binary or find_binary()
    try:
        _, said = await output([str(binary), "-help"], PROGRAM_S)
    except OSError as error:
        return failed(f"{binary} cannot be run: {error.strerror}", REINSTALL)
    if "-hostAddrs" not in said:
        return failed(f"{binary} is not the p2pd that is needed", REINSTALL)
    return passed("p2pd, which carries all connections, runs")


def lighthouse(package: str = "libp2p") -> Outcome:
    """Whether this machine could be a relay for others."""
    install = "`pip install 'murmuration[lighthouse]'`"
    if importlib.util.find_spec(package) is None:
        return skipped(f"no {package}, which only a machine needs that relays for others: {install}")
    try:
        return passed(f"{package} {metadata.version(package)} is installed: this machine could relay for others")
    except metadata.PackageNotFoundError:
        return skipped(f"a {package} without a version, which nobody installed as a package: {install}")


class _Timex(ctypes.Structure):
    """The beginning of Linux's ``struct timex``, and room for the rest."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("max_error_us", ctypes.c_long),
        ("error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    ]


_UNSYNCHRONISED = 0x40


def kernel_clock() -> float | None:
    """Seconds by which the kernel's clock is wrong at most, kept by a time server; None: none does, or not known."""
    try:
        times = _Timex()
        if ctypes.CDLL(None).adjtimex(ctypes.byref(times)) < 0 or times.status & _UNSYNCHRONISED:
            return None
    except (AttributeError, OSError):
        return None
    return float(times.max_error_us) / 1e6


def clock(status: dict[str, Any] | None, limit_s: float, error_s: float | None, now: float | None = None) -> Outcome:
    """Whether the clock is within ``limit_s`` of others': by a daemon's seeds, else by the kernel (``error_s``)."""
    now = time.time() if now is None else now
    if now < FIRST_DAY:
        return failed(f"the clock says {time.strftime('%d %B %Y', time.gmtime(now))}", SET_CLOCK)
    if status is not None:
        for warning in status["warnings"]:
            if warning["code"] == "clock":
                return failed(warning["text"], warning["remedy"] or SET_CLOCK)
        near = sum(each["state"] == "ok" for each in status["seeds"])
        if near:
            return passed(f"within {limit_s:.0f} s of {near} peer{'s' * (near > 1)} that the daemon compared it with")
    if error_s is not None and error_s < limit_s:
        return passed(f"kept by a time server, wrong by {error_s:.1f} s at most")
    return skipped(
        f"no time server is seen to keep it (others bear {limit_s:.0f} s); a running daemon compares it with its peers'"
    )
