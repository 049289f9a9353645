"""Launches for known sizes."""

from __future__ import annotations

import pytest

from graphopt.fusion.backends.cuda.launch import (
    MOST_BLOCKS,
    WIDE_FROM,
    Bound,
    Condition,
    Extent,
    GridDim,
    Launch,
)
from graphopt.fusion.loops.ir import Size
from tests.fusion.backends.cuda import launch_values

N = Size(1, (0,))


@pytest.mark.parametrize(
    ("extents", "per_block", "blocks"),
    [
        ((), 4, 1),
        ((Extent(N),), 4, 3),
        ((Extent(N, Size(4)),), 4, 2),
        ((Extent(N, Size(12)),), 1, 0),
        ((Extent(N, step=4), Extent(Size(3))), 1, 9),
        ((Extent(Size(2**40)),), 4, MOST_BLOCKS),
    ],
)
def test_number_of_blocks(extents: tuple[Extent, ...], per_block: int, blocks: int) -> None:
    assert launch_values.blocks(GridDim(extents, per_block), [10]) == blocks


@pytest.mark.parametrize("negated", [False, True])
def test_conditions(negated: bool) -> None:
    few, many = Bound((Extent(N),), most=10), Bound((Extent(N),), least=11)
    assert launch_values.holds(None, [10])
    assert launch_values.holds(Condition((few,), negated), [10]) != negated
    assert launch_values.holds(Condition((few, many), negated), [10]) == negated


def test_width_of_indices() -> None:
    narrow = Launch("f", GridDim(()), 32, ())
    both = Launch("f", GridDim(()), 32, (), counts=((Extent(Size(2)),), (Extent(N), Extent(Size(4)))))
    assert launch_values.function_name(narrow, [WIDE_FROM]) == "f"
    assert launch_values.function_name(both, [WIDE_FROM // 4 - 1]) == "f_32"
    assert launch_values.function_name(both, [WIDE_FROM // 4]) == "f_64"
