"""Batches and heads that are merged into one axis for a product of three axes, and parted after it.

Sizes: B batches, N heads.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis import dims
from graphopt.analysis.polynomial import OrElse
from graphopt.context import Dim
from graphopt.rewrite import Match
from graphopt.rules.support import forms


def parted(m: Match, value: ir.Value) -> ir.Value | None:
    """[B, N, *, *], of which ``value``, [B * N, *, *], is a view; or the other way round."""
    node = forms.producer_of(value, "Reshape")
    if node is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    shapes = [m.shape(source), m.shape(value)]
    if shapes[0] is None or shapes[1] is None or sorted(map(len, shapes)) != [3, 4]:  # type: ignore[arg-type]
        return None
    three, four = sorted(shapes, key=len)  # type: ignore[arg-type]
    assert three is not None and four is not None
    merged = (four[0] * four[1], *four[2:])
    return source if all(same(m, a, b) for a, b in zip(three, merged, strict=True)) else None


def parted_keys(m: Match, value: ir.Value) -> tuple[ir.Value, bool] | None:
    """[B, N, D, T] of which ``value``, [B * N, D, T], is a view, and True; or [B, N, T, D], and False."""
    direct = parted(m, value)
    if direct is not None:
        return direct, True
    node = forms.producer_of(value, "Transpose")
    if node is None or node.inputs[0] is None or forms.perm_of(m, node) != (0, 2, 1):
        return None
    before = parted(m, node.inputs[0])
    return None if before is None else (before, False)


def same(m: Match, a: Dim, b: Dim) -> bool:
    """Whether two dims are the same, but that a Reshape copies another dim where one of them is 0.

    Such a tensor has no elements, or the model doesn't run: its dims are of no account.
    """
    return m.cx.facts.dim_equal(_told(a), _told(b))


def _told(dim: Dim) -> Dim:
    atom = dims.lone_atom(dim)
    return _told(atom.first) if isinstance(atom, OrElse) else dim
