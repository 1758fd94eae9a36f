"""What the doctor found: as JSON (contracts.md), and as lines of text of which the last ones matter most. Pure."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from protocols.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Result = Literal["pass", "warn", "fail", "skipped"]

SCHEMA = 1
NARROWEST = 40
TITLE = 10
"""Columns of a title."""
JOIN = "join/"
"""How the ids of the addresses begin through which one enters a run: one of them is enough."""
NO_NETWORK = "mend the network first, as said there"
_ORDER: tuple[Result, ...] = ("pass", "skipped", "warn", "fail")
_MARKS: dict[Result, tuple[str, str]] = {
    "pass": ("✓", "32"),
    "skipped": ("·", "2"),
    "warn": ("!", "33"),
    "fail": ("✗", "31"),
}
"""The symbol and its colour."""
_INDENT = TITLE + 4
_TRY = "try: "


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look showed: ``evidence`` is a sentence for a person, ``remedy`` what to do about it."""

    result: Result
    evidence: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, as the JSON has it; ``seconds`` it took."""

    id: str
    title: str
    result: Result
    evidence: str
    remedy: str | None
    seconds: float


def passed(evidence: str) -> Outcome:
    """All is well, and this shows it."""
    return Outcome("pass", evidence)


def skipped(reason: str) -> Outcome:
    """Nothing was looked at, for this reason."""
    return Outcome("skipped", reason)


def warned(evidence: str, remedy: str) -> Outcome:
    """It works, and could work better."""
    return Outcome("warn", evidence, remedy)


def failed(evidence: str, remedy: str) -> Outcome:
    """This has to be mended."""
    return Outcome("fail", evidence, remedy)


def worst(findings: Iterable[Finding]) -> Result:
    """The worst of all results; what was skipped counts for nothing."""
    return max((each.result for each in findings if each.result != "skipped"), key=_ORDER.index, default="pass")


def eased(findings: Sequence[Finding]) -> list[Finding]:
    """The same, and an address that fails is a warning where another one leads into the run.

    Without a network there is one thing to mend.
    """
    if any(each.id == "network" and each.result == "fail" for each in findings):
        return [replace(each, remedy=NO_NETWORK) if _is_lost(each) else each for each in findings]
    if not any(each.id.startswith(JOIN) and each.result == "pass" for each in findings):
        return list(findings)
    return [replace(each, result="warn") if _is_lost(each) else each for each in findings]


def _is_lost(finding: Finding) -> bool:
    return finding.id.startswith(JOIN) and finding.result == "fail"


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The document, checks in the order given."""
    return {"schema": SCHEMA, "worst": worst(findings), "checks": [asdict(each) for each in findings]}


def report(findings: Sequence[Finding], width: int | None = None, *, colours: bool = False) -> str:
    """Lines without a final newline, at most ``width`` columns each (None: as long as they are).

    What fails comes last, each with its remedy, and then one line that counts.
    """
    ranked = sorted(_merged(findings), key=lambda each: _ORDER.index(each.result))
    return "\n".join([*(_entry(each, width, colours) for each in ranked), "", _count(findings)])


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """The same, where all that was skipped for one reason is one entry."""
    left: dict[str, list[str]] = {}
    for each in findings:
        if each.result == "skipped":
            left.setdefault(each.evidence, []).append(each.title)
    shown = [each for each in findings if each.result != "skipped"]
    for reason, titles in left.items():
        first = next(each for each in findings if (each.result, each.evidence) == ("skipped", reason))
        many = replace(first, title="skipped", evidence=f"{', '.join(dict.fromkeys(titles))}: {reason}")
        shown.append(many if len(titles) > 1 else first)
    return shown


def _entry(finding: Finding, width: int | None, colours: bool) -> str:
    symbol, colour = _MARKS[finding.result]
    mark = f"\x1b[{colour}m{symbol}\x1b[0m" if colours else symbol
    lines = _wrapped(finding.evidence, width)
    if finding.remedy:
        lines += _wrapped(finding.remedy, width, _TRY)
    title = printable(finding.title)
    return "\n".join([f" {mark} {title:<{TITLE}} {lines[0]}", *(f"{'':{_INDENT}}{each}" for each in lines[1:])])


def _wrapped(text: str, width: int | None, begin: str = "") -> list[str]:
    text = printable(text)
    if width is None:
        return [begin + text]
    room = max(NARROWEST, width) - _INDENT
    rest = " " * len(begin)
    return textwrap.wrap(begin + text, room, subsequent_indent=rest, break_on_hyphens=False) or [begin]


def _count(findings: Sequence[Finding]) -> str:
    """``1 failed, 2 warnings, 11 passed, 5 skipped``; what there is none of is left out."""
    counts = {name: sum(each.result == name for each in findings) for name in _ORDER}
    words = {"fail": "failed", "warn": f"warning{'s' * (counts['warn'] != 1)}", "pass": "passed", "skipped": "skipped"}
    return ", ".join(f"{counts[name]} {words[name]}" for name in ("fail", "warn", "pass", "skipped") if counts[name])
