"""Arithmetic of the sizes of :mod:`graphopt.fusion.loops`."""

from __future__ import annotations

from math import gcd

from ..loops import ZERO, Size


def simple(size: Size) -> Size:
    """The same size in lowest terms: equal sizes that hold the same symbols compare equal."""
    if not size.factor:
        return ZERO
    shared = gcd(size.factor, size.divisor)
    return Size(size.factor // shared, tuple(sorted(size.symbols)), size.divisor // shared)


def times(a: Size, b: Size) -> Size:
    """Their product."""
    return simple(Size(a.factor * b.factor, a.symbols + b.symbols, a.divisor * b.divisor))
