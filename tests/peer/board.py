"""What a network tells its reporter, kept for tests that have no daemon."""

from __future__ import annotations

from peer import status


class Board:
    """In place of a reporter: the status document, without anybody who reads it."""

    def __init__(self, initial: status.Status) -> None:
        self.status = initial

    @classmethod
    def of(cls, peer: str) -> Board:
        """That of a peer just begun."""
        return cls(status.Status(version="0.1.0", protocol=1, peer=peer, since=0.0))

    def apply(self, event: status.Event) -> None:
        """A status event."""
        self.status = status.apply(self.status, event)

    def warn(self, code: str, text: str, remedy: str = "") -> None:
        """A warning."""
        self.apply(status.Warned(code, text, remedy))
