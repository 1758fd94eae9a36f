"""Builds the wheel, installs it into an empty environment, and finds exactly the four packages and the command.

Run as a script by ``make wheel``: it builds from a copy, so a stale ``build/`` cannot add to the wheel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

PACKAGES = ("dht", "incentives", "peer", "protocols")
ROOT = Path(__file__).resolve().parent.parent


def build(into: Path) -> Path:
    """The wheel of a fresh copy of the packages."""
    source = into / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(into), str(source)], check=True)
    [wheel] = into.glob("*.whl")
    return wheel


def install(wheel: Path, into: Path) -> Path:
    """An environment with nothing but the wheel; returns its root."""
    venv.create(into, with_pip=False, symlinks=True)
    python = into / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    return into


def check(environment: Path) -> None:
    """Raises AssertionError unless the four packages, all their files and the command arrived."""
    [site] = environment.glob("lib/python*/site-packages")
    found = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert found == set(PACKAGES), f"top-level names in the wheel: {sorted(found)}"
    for name in PACKAGES:
        assert (site / name / "py.typed").is_file(), f"{name}/py.typed is missing"
        ours = {path.relative_to(ROOT) for path in (ROOT / name).rglob("*.py")}
        theirs = {path.relative_to(site) for path in (site / name).rglob("*.py")}
        assert ours == theirs, f"{name}: files only on one side: {sorted(map(str, ours ^ theirs))}"
    # The command itself, with the dependencies of the environment that runs this check.
    dependencies = {"PYTHONPATH": sysconfig.get_paths()["purelib"], "PATH": os.environ["PATH"]}
    command = [str(environment / "bin" / "murmur"), "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dependencies, cwd=environment)
    assert done.stdout.startswith("murmur 0."), done.stdout


def main() -> None:
    """Exit 0 with one line, or a traceback that names what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        check(install(wheel, Path(folder) / "environment"))
        print(f"{wheel.name}: four packages and the command, nothing else")


if __name__ == "__main__":
    main()
