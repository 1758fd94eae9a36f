"""Memory of received payloads: used again once nobody refers to it, never before."""

from __future__ import annotations

import gc
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from dht.rooms import SLAB_BYTES, Rooms

FULL = SLAB_BYTES - 9


def address(room: memoryview) -> int:
    place: int = np.frombuffer(room, dtype=np.uint8).__array_interface__["data"][0]
    return place


def test_a_slab_comes_back_when_the_last_view_of_it_is_gone() -> None:
    rooms = Rooms()
    first = rooms.take(FULL)
    place, part = address(first), first[20:30].toreadonly()
    array = np.frombuffer(part, dtype=np.uint8)
    del first
    assert address(rooms.take(SLAB_BYTES)) != place
    del part
    assert address(rooms.take(SLAB_BYTES)) != place
    del array
    assert address(rooms.take(SLAB_BYTES)) == place


def test_free_slabs_are_let_go_of_and_other_sizes_are_never_kept() -> None:
    rooms = Rooms()
    rooms.take(FULL)
    rooms.take(SLAB_BYTES + 1)
    rooms.take(SLAB_BYTES // 2)
    assert len(rooms._free) == 1
    rooms.give_back()
    assert not rooms._free
    assert len(rooms.take(FULL)) == FULL


@given(some.lists(some.tuples(some.integers(0, 2 * SLAB_BYTES), some.integers(0, 5)), max_size=12))
def test_rooms_in_use_never_overlap_and_are_aligned(wanted: list[tuple[int, int]]) -> None:
    rooms, held = Rooms(), []
    for size, gone in wanted:
        held.append(rooms.take(size))
        assert len(held[-1]) == size and (size == 0 or address(held[-1]) % 16 == 0)
        del held[:gone]
        spans = sorted((address(each), len(each)) for each in held if len(each))
        assert all(start + size <= after for (start, size), (after, _) in zip(spans, spans[1:], strict=False))


def test_any_thread_may_let_go() -> None:
    rooms = Rooms()
    held = [rooms.take(FULL) for _ in range(16)]

    def drop() -> None:
        while held:
            held.pop()
            rooms.take(FULL)

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    gc.collect()
    assert not rooms._leases
    places = {slab.__array_interface__["data"][0] for slab in rooms._free}
    assert len(places) == len(rooms._free) >= 16
