"""Where a daemon speaks to the person who started it: lines, and on a terminal one more that is rewritten in place."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import textwrap
from typing import TYPE_CHECKING, Literal

from protocols.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

Mark = Literal["ok", "warn", "note"]

NARROWEST = 40
LABEL = 10
_MARKS: dict[Mark, tuple[str, str, str]] = {
    "ok": ("✓", "+", "32"),
    "warn": ("!", "!", "33"),
    "note": ("·", "-", "2"),
}
"""The symbol, what stands for it where the stream cannot say it, and its colour."""
_PLAIN = {"–": "-", "·": "-", "…": "...", "×": "x", "✓": "+", "✗": "x", "█": "#", "─": "-", "▕": "[", "▏": "]"}
_CLEAR = "\r\x1b[K"


class Terminal:
    """One stream. Colour and rewriting only on a terminal; ``NO_COLOR`` and ``TERM=dumb`` are heeded."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        self._stream = stream
        self._wraps = stream.isatty()
        self.rewrites = _rewrites(stream, environ)
        self._colours = colours(stream, environ)
        self._plain = not _says("✓▕█─▏·", stream.encoding)
        self._live = ""

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        return max(NARROWEST, shutil.get_terminal_size().columns)

    def line(self, text: str) -> None:
        """One line as it is."""
        self._write(f"{self._erased()}{printable(text)}\n")

    def item(self, mark: Mark, label: str, text: str) -> None:
        """A line with a symbol and a word; on a terminal what is too long goes on below itself."""
        symbol, plain, colour = _MARKS[mark]
        symbol = plain if self._plain else symbol
        shown = f"\x1b[{colour}m{symbol}\x1b[0m" if self._colours else symbol
        lines = [printable(text)]
        if self._wraps:
            room = max(20, self.width - LABEL - 5)
            lines = textwrap.wrap(lines[0], room, break_on_hyphens=False) or [""]
        rest = "".join(f"\n{'':{LABEL + 4}}{each}" for each in lines[1:])
        self._write(f"{self._erased()} {shown} {label:<{LABEL}} {lines[0]}{rest}\n")

    def live(self, text: str) -> None:
        """Rewrite the last line; nothing where that cannot be done."""
        text = printable(text)[: self.width - 1]
        if self.rewrites and not self._plain and text != self._live:
            self._live = text
            self._write(f"{_CLEAR}{text}\r")

    def clear(self) -> None:
        """Take the rewritten line away, before somebody else writes."""
        self._write(self._erased())

    def wipe(self) -> None:
        """Empty the line that the cursor is in: somebody else rewrites it on the same terminal."""
        if self.rewrites:
            self._write(_CLEAR)

    def _erased(self) -> str:
        erased, self._live = (_CLEAR if self._live else ""), ""
        return erased

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()


def colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether text for this stream may have colours."""
    return _rewrites(stream, environ) and not environ.get("NO_COLOR")


def _rewrites(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb")


def never_fail(stream: TextIO) -> None:
    """What the stream's encoding cannot say is written in characters that every encoding has."""
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("murmur", _plainly)
        stream.reconfigure(errors="murmur")


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


def _says(text: str, encoding: str | None) -> bool:
    """Whether a stream of this encoding can say it."""
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
