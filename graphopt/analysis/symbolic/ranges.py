"""Interval arithmetic on the ranges of integers."""

from __future__ import annotations

import math
from typing import TypeAlias

Bound: TypeAlias = int | float
"""An ``int``, or ``-math.inf`` / ``math.inf`` for no bound."""

Range: TypeAlias = tuple[Bound, Bound]

UNBOUNDED: Range = (-math.inf, math.inf)


def _times(a: Bound, b: Bound) -> Bound:
    return 0 if a == 0 or b == 0 else a * b


def product_range(a: Range, b: Range) -> Range:
    """The range of the product."""
    if a[0] >= 0 and b[0] >= 0:
        return (_times(a[0], b[0]), _times(a[1], b[1]))
    corners = [_times(x, y) for x in a for y in b]
    return (min(corners), max(corners))


def quotient_range(num: Range, den: Range) -> Range:
    """The range of the floor division."""
    if den[0] <= 0:
        if den[0] == 0 and num[0] >= 0:  # division by 0 has no value
            return (0, num[1])
        return UNBOUNDED
    corners = [_floor_quotient(n, d) for n in num for d in den]
    return (min(corners), max(corners))


def _floor_quotient(n: Bound, d: Bound) -> Bound:
    if isinstance(n, float):
        return n
    if isinstance(d, float):
        return 0 if n >= 0 else -1
    return n // d


def or_else_range(first: Range, otherwise: Range) -> Range:
    """The range of ``first``, or of ``otherwise`` if ``first`` is 0."""
    lo = 1 if first[0] == 0 else first[0]
    return (min(lo, otherwise[0]), max(first[1], otherwise[1]))


def maximum_range(*ranges: Range) -> Range:
    """The range of the maximum."""
    return (max([lo for lo, _ in ranges]), max([hi for _, hi in ranges]))


def minimum_range(*ranges: Range) -> Range:
    """The range of the minimum."""
    return (min([lo for lo, _ in ranges]), min([hi for _, hi in ranges]))
