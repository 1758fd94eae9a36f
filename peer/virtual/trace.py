"""What happened, in order, boiled down to one hash: equal for equal seeds."""

from __future__ import annotations

from blake3 import blake3


class Trace:
    """Lines of (virtual time, peer, what); only their hash is kept unless ``keep``."""

    def __init__(self, *, keep: bool = False) -> None:
        self.lines: list[str] | None = [] if keep else None
        self._state = blake3()

    def say(self, now: float, who: str, text: str) -> None:
        """Note one event."""
        line = f"{now:.6f} {who} {text}"
        self._state.update(line.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """The hash of everything so far, hex."""
        return self._state.hexdigest()
