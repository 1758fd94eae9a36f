"""Statements between peers of one process: encoded, decoded and verified once, whoever they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from protocols.statements import Scope, Statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import Hash

T = TypeVar("T")
REMEMBERED = 4096
SHARED = 256
"""Values of that kind are large, and wanted for a round or two."""
_shared: dict[tuple[object, ...], object] = {}
_decoded: dict[tuple[bytes, str, bytes], Statement] = {}
_wired: dict[tuple[bytes, Hash], tuple[Statement, int]] = {}


class QuickScope(Scope):
    """Decodes what it has already decoded from memory: in a flood every statement arrives many times."""

    def decode(self, encoded: bytes, *, sender: str) -> Statement:
        """See ``Scope.decode``, a pure function but for the sender that its errors name."""
        key = (self.run, self.cell, encoded)
        found = _decoded.get(key)
        if found is None:
            found = _decoded[key] = super().decode(encoded, sender=sender)
            if len(_decoded) > REMEMBERED:
                del _decoded[next(iter(_decoded))]
        return found

    def shared(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """See ``Scope.shared``: what a hash names is computed by the first peer that needs it."""
        full = (self.run, self.cell, *key)
        if full not in _shared:
            _shared[full] = make()
            if len(_shared) > SHARED:
                del _shared[next(iter(_shared))]
        return cast("T", _shared[full])


def forget() -> None:
    """Begin anew, as another program would that the shared values were not computed with."""
    _shared.clear()


def wired(scope: Scope, statement: Statement) -> tuple[Statement, int]:
    """The statement as any receiver decodes it, and its bytes on the wire; raises RemoteError as ``decode`` does."""
    key = (scope.run, statement.hash)
    found = _wired.get(key)
    if found is None:
        encoded = statement.encode()
        found = _wired[key] = scope.decode(encoded, sender=statement.peer), len(encoded)
        if len(_wired) > REMEMBERED:
            del _wired[next(iter(_wired))]
    return found
