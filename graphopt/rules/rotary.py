"""Rotary position embedding: pairs of elements turned by angles that grow with the position."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms
from graphopt.rules._attention_heads import heads_of


def _turned(op: Any, x: Any, sizes: Any) -> Any:
    """Halves of the last axis, swapped, and the one that comes first negated."""
    first, second = op.Split(x, sizes.rest(), outputs=2, tag="halves")
    return op.Concat(op.Neg(second), first, tag="turned")


@rule(
    lambda op, x, c, s, sizes: op.Add(op.Mul(x, c), op.Mul(_turned(op, x, sizes), s)),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    anchors=("Neg",),
    tags=("onnxscript:rotary-embedding", "onnxscript:cos-sin-cache"),
)
def rotary_embedding(op: Builder, m: Match, x: ir.Value, c: ir.Value, s: ir.Value, sizes: object) -> Outcome:
    """x * cos + turned(x) * sin, cos and sin of the same angles twice, is a RotaryEmbedding."""
    if m.cx.options.portable:
        return m.no("it is no operator of the ONNX standard", hint="leave out --portable")
    shape = m.shape(x)
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int) or shape[3] % 2:
        return m.no("it is not [batch, heads, length, an even size]", x)
    length, half = shape[2], shape[3] // 2
    for node in (m.node("halves"), m.node("turned")):
        if forms.axis_of(m, node, 4) != 3:
            return m.no("it turns another axis", x)
    if ir.all_ints(m.shape(m.node("halves").outputs[0])[3:] or ()) != (half,):  # type: ignore[index]
        return m.no("its parts are no halves", x)
    angles = _angles(m, c, "Cos")
    if angles is None or angles is not _angles(m, s, "Sin"):
        return m.no("cos and sin are not known to be those of angles, each twice", c)
    told = m.shape(angles)
    if not told or not forms.same_shape(m, told[-2:], (length, half)) or any(dim != 1 for dim in told[:-2]):
        return m.no(
            "the angles are not those of the positions of one row",
            angles,
            hint="give all of a batch the same positions; --dim fixes a batch that is always 1",
        )
    if not m.cx.target.has_kernel("RotaryEmbedding", ir.MICROSOFT, 1, m.dtype(x)):
        return m.no("the target has no kernel for it", x)
    if not forms.keeps_shape_of(m, x):
        return m.no(forms.WIDENED, x)
    table = op.Reshape(angles, np.array([-1, half]))
    tables = [op.Cos(table), op.Sin(table)]
    heads = heads_of(m, x)
    rows = None if heads is None else heads.rows
    start = np.array([0])
    whole = x if rows is None else rows.built(op, m)
    turned = op.node("RotaryEmbedding", [whole, start, *tables], domain=ir.MICROSOFT)
    if rows is None:
        return turned
    split = op.Reshape(turned, np.array([0, 0, shape[1], shape[3]]))
    return op.Transpose(split, perm=[0, 2, 1, 3])


def _angles(m: Match, value: ir.Value, function: str) -> ir.Value | None:
    """The angles [..., length, half] of which ``value`` holds the cosines (or sines), twice in a row."""
    seen: set[str] = set()
    while True:
        node = value.producer()
        if node is None or node.domain or node.op_type in seen:
            return None
        source = node.inputs[0]
        if node.op_type == "Concat" and function in seen:
            twice = len(node.inputs) == 2 and node.inputs[1] is source
            rank = None if source is None else m.rank(source)
            return source if twice and forms.axis_of(m, node, rank) == (rank or 0) - 1 else None
        if node.op_type not in (function, "Unsqueeze") or source is None:
            return None
        if node.op_type == "Unsqueeze":
            axes, rank = forms.axes_of(m, node), m.rank(node.outputs[0])
            if axes is None or rank is None or not all(axis < rank - 2 for axis in axes):
                return None
        else:
            seen.add(function)
        value = source
