"""``murmur doctor``: looks at this machine, its network and its daemon, and names what stands in the way."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from .cli_flags import common
from .config_table import NAMES, OPTIONS, add_flags
from .exits import Exit

if TYPE_CHECKING:
    from .cli_flags import Commands
    from .doctor_report import Finding

LOOKED_AT = ("home", "run", "size", "data", "listen", "p2p_port", "api_port", "alone", "join", "keep_checkpoints")
"""Options of `murmur up` that a check depends on."""


def add(commands: Commands) -> None:
    """Put ``doctor`` among the commands."""
    about = "look at this machine, its network and its daemon, and say what to mend; exit 1 if a check failed"
    epilog = "It takes the options of `murmur up` from flags, environment and configuration file, and changes nothing."
    doctor = commands.add_parser(
        "doctor", help=about, description=about, epilog=epilog, parents=[common()], allow_abbrev=False
    )
    add_flags(doctor, without=tuple(name for name in NAMES if name not in LOOKED_AT))
    doctor.add_argument("--config", dest="file", metavar="FILE", help="configuration file (or MURMUR_CONFIG)")
    doctor.add_argument("--json", action="store_true", help="only JSON on stdout")
    doctor.set_defaults(command=_run)


def _run(arguments: dict[str, Any]) -> int:
    import asyncio
    from pathlib import Path

    from . import client, doctor_report
    from .terminal import colours

    given = {option.name: arguments.get(option.name) for option in OPTIONS if option.name in LOOKED_AT}
    file = Path(arguments["file"]).expanduser() if arguments["file"] else None
    findings = doctor_report.eased(asyncio.run(_examine(given, file, quiet=arguments["json"])))
    if arguments["json"]:
        print(json.dumps(doctor_report.to_json(findings)))
    else:
        print(doctor_report.report(findings, client.columns(), colours=colours(sys.stdout, os.environ)))
    return Exit.FAILED if doctor_report.worst(findings) == "fail" else Exit.DONE


async def _examine(given: dict[str, Any], file: Any, *, quiet: bool) -> list[Finding]:
    from . import doctor_checks, doctor_subject
    from .doctor import beside, examine
    from .terminal import Terminal

    options = doctor_subject.configured(given, file, os.environ)
    subject = await beside(lambda: doctor_subject.look(options))
    terminal = Terminal(sys.stderr)

    def tell(pending: list[str]) -> None:
        if not quiet:
            terminal.live(f" looking at {', '.join(pending)}" if pending else "")

    checks = doctor_checks.Checks(subject)
    try:
        return await examine(checks.all(), tell)
    finally:
        terminal.clear()
        await checks.close()
