"""Permutations of axes, as in the attribute ``perm`` of Transpose."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.analysis.symbolic import Dim
from graphopt.util.lazy_dataclass import dataclass

#: Axis ``i`` of the result is axis ``perm[i]`` of the operand.
Perm = tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """The layouts in which a site reads and writes tensors.

    Attributes:
        read: the site reads each tensor ``x`` as ``Transpose(x, read)``.
        result: the site writes each result ``y`` as ``Transpose(y, result)``.
    """

    read: Perm
    result: Perm


def identity(rank: int) -> Perm:
    """The permutation that moves nothing."""
    return tuple(range(rank))


def compose(first: Perm, second: Perm) -> Perm:
    """The permutation of ``Transpose(Transpose(x, first), second)``."""
    return tuple(first[axis] for axis in second)


def inverse(perm: Perm) -> Perm:
    """The permutation that cancels ``perm``."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def after(first: Perm, both: Perm) -> Perm:
    """The permutation that turns ``Transpose(x, first)`` into ``Transpose(x, both)``."""
    return tuple(first.index(axis) for axis in both)


def significant(perm: Perm, shape: Sequence[Dim] | None) -> Perm:
    """``perm`` without axes of size 1: equal results denote layouts with the same order in memory."""
    return perm if shape is None else tuple(axis for axis in perm if shape[axis] != 1)
