"""Drift after a jump: as old as the seals jumped over, and gone where three in a row have not taken it (5.11)."""

from __future__ import annotations

import numpy as np
import pytest

from protocols.messages import Leg
from protocols.round import settling
from protocols.round.context import Training
from protocols.round.effects import Train, Window
from tests.swarm.crowd import PART, VALUES, stand_in


@pytest.mark.parametrize(("seals", "left"), [(0, [0, 1, 2]), (1, [1, 2, None]), (2, [2, None, None]), (3, [None] * 3)])
def test_parts_that_three_seals_have_left_go(seals: int, left: list[int | None]) -> None:
    ctx = stand_in(4)._ctx
    ctx.drift = np.ones(VALUES, dtype=np.float32)
    ctx.ages = (0, 1, 2, 0, 0, 0)
    ctx.legs = [Leg(ctx.head.seal, 1, 1)]
    before = ctx.drift
    ctx.training = Training(ctx.head.seal, before, 0.0)
    settling.jump(ctx, seals)
    for index, age in enumerate(left):
        part = ctx.drift[index * PART : (index + 1) * PART]
        assert part.any() == (age is not None)
        assert ctx.ages[index] == (age or 0)
    assert bool(ctx.legs) == (seals < 3)
    assert ctx.training is not None and ctx.training.stale == (seals >= 3)
    assert before.all(), "nobody changes it in place"


def test_a_window_that_began_before_a_long_jump_adds_nothing_and_another_begins() -> None:
    machine = stand_in(4)
    machine.start(0.0)
    ctx = machine._ctx
    assert ctx.training is not None
    settling.jump(ctx, 5)
    window = Window(np.ones(VALUES, dtype=np.float32), 1, 1)
    effects = machine.trained(ctx.training.parent, window, 5.0)
    assert not ctx.drift.any() and not ctx.legs
    assert [type(each) for each in effects if isinstance(each, Train)] == [Train]
