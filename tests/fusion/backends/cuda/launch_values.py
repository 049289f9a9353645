"""The meaning of launches for known sizes: the reference for hosts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphopt.fusion.backends.cuda.launch import (
    MOST_BLOCKS,
    WIDE_FROM,
    Bound,
    Condition,
    Count,
    Extent,
    GridDim,
    Launch,
)
from graphopt.fusion.loops.interpreter import number


def count(extents: Count, symbols: Sequence[int]) -> int:
    """The product of ``extents``; an empty range counts 0."""
    return prod(_steps(extent, symbols) for extent in extents)


def _steps(extent: Extent, symbols: Sequence[int]) -> int:
    length = number(extent.stop, symbols) - number(extent.start, symbols)
    return max(-(-length // extent.step), 0)


def blocks(grid: GridDim, symbols: Sequence[int]) -> int:
    """The number of blocks of ``grid``."""
    return min(-(-count(grid.extents, symbols) // grid.per_block), MOST_BLOCKS)


def holds(condition: Condition | None, symbols: Sequence[int]) -> bool:
    """Whether a launch with ``condition`` is made."""
    if condition is None:
        return True
    found = all(_is_within(bound, symbols) for bound in condition.bounds)
    return found != condition.negated


def _is_within(bound: Bound, symbols: Sequence[int]) -> bool:
    value = count(bound.count, symbols)
    return value >= bound.least and (bound.most is None or value <= bound.most)


def function_name(launch: Launch, symbols: Sequence[int]) -> str:
    """The name of the function that ``launch`` takes."""
    if not launch.counts:
        return launch.function
    is_wide = any(count(extents, symbols) >= WIDE_FROM for extents in launch.counts)
    return f"{launch.function}_{64 if is_wide else 32}"
