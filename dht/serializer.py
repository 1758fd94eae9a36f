"""What hivemind may decode of the directory's values: flat ones, and one dictionary of flat ones.

hivemind decodes the values of requests and answers before any validator sees them. A tuple inside a tuple, 200 times
over, overflows the C stack and ends the process; a list that only declares its length has megabytes set aside.
"""

from __future__ import annotations

import math

import msgpack
from hivemind.dht.protocol import DHTProtocol
from hivemind.utils import MSGPackSerializer

from protocols.canonical import decode_bounded

from .limits import RECORDS

DICTIONARY = 0x50
"""hivemind's type of msgpack extension for a dictionary: [room, expiry, [[subkey, value, expiry]]]."""
_FLAT = (str, bytes, int, float, bool, type(None))


class BoundedSerializer(MSGPackSerializer):  # type: ignore[misc]
    """hivemind's own, for what the directory stores."""

    @classmethod
    def loads(cls, buf: bytes) -> object:
        """The value of ``buf``; raises ValueError for what no directory of ours holds."""
        check_value(buf)
        return super().loads(buf)


def install() -> None:
    """Let every node of this process decode with it. Idempotent."""
    DHTProtocol.serializer = BoundedSerializer


def check_value(raw: bytes) -> None:
    """Raises ValueError unless ``raw`` is a flat value, or a dictionary of at most ``RECORDS`` of them."""
    value = decode_bounded(raw, items=0, total=0)
    if not isinstance(value, msgpack.ExtType):
        _check_flat(value)
        return
    if value.code != DICTIONARY:
        raise ValueError(f"an extension of type {value.code}")
    whole = decode_bounded(value.data, items=RECORDS, total=5 * RECORDS + 8)
    if not isinstance(whole, list) or len(whole) != 3 or not isinstance(whole[2], list):
        raise ValueError("not a dictionary")
    for number in whole[:2]:
        _check_number(number)
    for entry in whole[2]:
        if not isinstance(entry, list) or len(entry) != 3:
            raise ValueError("an entry that is none")
        _check_flat(entry[0])
        _check_flat(entry[1])
        _check_number(entry[2])


def _check_flat(value: object) -> None:
    if not isinstance(value, _FLAT):
        raise ValueError(f"a {type(value).__name__}")


def _check_number(value: object) -> None:
    if not isinstance(value, int | float) or math.isnan(value):
        raise ValueError("not a number")
