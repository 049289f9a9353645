"""FusedMatMul: a product with the scalar factors and transpositions around it.

onnxruntime does the same when it creates a session: the benefit is a shorter model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product, zip_longest
from typing import Any

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.axes import perm_of
from graphopt.rules.building_blocks.computed_constants import times_number
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.operands import int_of
from graphopt.rules.building_blocks.shape_equality import same_shape
from graphopt.util.lazy_dataclass import dataclass

_NAME = "FusedMatMul"
_SIZE_HINT = "give the size: --dim, --dim-range"


@dataclass(frozen=True)
class Side:
    """An operand, and its transposition before the product.

    Attributes:
        rows_first: whether the first axis moves after the batch axes (``transBatchA``).
        swapped: whether the last two axes are then swapped (``transA``).
    """

    value: ir.Value
    rows_first: bool = False
    swapped: bool = False

    def perm(self, rank: int) -> tuple[int, ...]:
        """The permutation of the axes of ``value``."""
        axes = list(range(rank))
        if self.rows_first:
            axes.insert(rank - 2, axes.pop(0))
        if self.swapped:
            axes[-2:] = axes[:-3:-1]
        return tuple(axes)

    def transposed_by(self, source: ir.Value, perm: tuple[int, ...]) -> Side | None:
        """The operand that is ``source`` transposed by ``perm``, with the transposition as flags."""
        expected = tuple(perm[axis] for axis in self.perm(len(perm)))
        for rows_first, swapped in product((False, True), repeat=2):
            side = Side(source, rows_first, swapped)
            if side.perm(len(perm)) == expected:
                return side
        return None


@dataclass(frozen=True)
class Product:
    """``alpha * a @ b``."""

    a: Side
    b: Side
    alpha: float = 1.0


def _read(m: Match, node: ir.Node) -> Product:
    """The MatMul or FusedMatMul ``node``, if the result may be a FusedMatMul."""
    a, b = node.inputs
    assert a is not None and b is not None
    require_kernel(m, _NAME, a)
    if any(quantizers.dequantized(m, side) is not None for side in (a, b)):
        m.refuse("onnxruntime multiplies dequantized operands as integers", a)
    if node.op_type == "MatMul" and fusions.is_in_attention(node):
        m.refuse(fusions.ATTENTION, node.outputs[0])
    if any((m.rank(side) or 0) < 2 for side in (a, b)):
        m.refuse("an operand has fewer than two axes, or an unknown rank", a)
    flags = {
        name: bool(int_of(m, node, name, 0)) for name in ("transBatchA", "transA", "transBatchB", "transB")
    }
    alpha = 1.0 if node.op_type == "MatMul" else float(m.attribute(node, "alpha"))
    return Product(
        Side(a, flags["transBatchA"], flags["transA"]), Side(b, flags["transBatchB"], flags["transB"]), alpha
    )


def _write(op: Builder, m: Match, found: Product) -> ir.Value:
    """The FusedMatMul; refuses to transpose if sums may be empty: the kernel leaves empty sums undefined."""
    transposes = any(side.swapped for side in (found.a, found.b))
    shape = m.shape(found.a.value)
    if transposes and (shape is None or not symbolic.known_nonzero(shape[found.a.perm(len(shape))[-1]])):
        reason = "the axis of the sum may be empty, which the kernel does not support"
        m.refuse(reason, found.a.value, hint=_SIZE_HINT)
    if any(side.rows_first for side in (found.a, found.b)) and m.rank(found.a.value) != m.rank(found.b.value):
        m.refuse("the kernel permutes batch axes only for operands of equal rank", found.a.value)
    if (found.a.swapped or found.a.rows_first) and (value := _empty_batch(m, found)) is not None:
        reason = "a batch axis that is broadcast may be empty, which the kernel refuses"
        m.refuse(reason, value, hint=_SIZE_HINT)
    attributes: dict[str, Any] = {}
    if found.alpha != 1:
        attributes["alpha"] = found.alpha
    for name, side in (("A", found.a), ("B", found.b)):
        if side.swapped:
            attributes[f"trans{name}"] = 1
        if side.rows_first:
            attributes[f"transBatch{name}"] = 1
    return op.fused(op.node(_NAME, [found.a.value, found.b.value], attributes, domain=ir.MICROSOFT))


def _empty_batch(m: Match, found: Product) -> ir.Value | None:
    """The operand with a perhaps empty batch axis, broadcast against a missing axis or one of size 1.

    onnxruntime (1.31) does not broadcast such an axis if it transposes the first operand
    (``MatMulComputeHelper``).
    """
    batches = []
    for side in (found.a, found.b):
        shape = m.shape(side.value)
        if shape is None:
            return side.value
        batches.append([shape[axis] for axis in side.perm(len(shape))[:-2]][::-1])
    for one, other in zip_longest(*batches):
        for value, dim, opposite in ((found.a.value, one, other), (found.b.value, other, one)):
            if dim is None or symbolic.known_nonzero(dim) or (isinstance(opposite, int) and opposite != 1):
                continue
            if opposite is None or not m.cx.facts.dim_equal(dim, opposite):
                return value
    return None


def _dims_or_zeros(m: Match, value: ir.Value) -> tuple[Dim, ...]:
    """The dims of ``value``, with 0 for unknown dims."""
    return m.shape(value) or (0,)


def _products(op: Any, x: Any, y: Any) -> Iterator[Any]:
    yield op.MatMul(x, y, tag="product")
    yield op.domain(ir.MICROSOFT).FusedMatMul(x, y, tag="product")


def _of_transposed(op: Any, x: Any, y: Any) -> Iterator[Any]:
    yield from _products(op, op.Transpose(x, tag="move"), y)
    yield from _products(op, x, op.Transpose(y, tag="move"))
    yield from _products(op, op.Cast(op.Transpose(x, tag="move")), y)
    yield from _products(op, x, op.Cast(op.Transpose(y, tag="move")))


@fusion(
    _of_transposed,
    phase=2,
    pattern="FusedMatMul",
    anchors=(),
    tags=("onnxscript:fused-matmul", "onnxruntime:MatmulTransposeFusion"),
)
def transpose_into_fused_matmul(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """Transpose(a) @ b → FusedMatMul(a, b, transA=1); likewise for b."""
    found, move = _read(m, m.root), m.node("move")
    perm, source = perm_of(m, move), move.inputs[0]
    assert source is not None
    cast = next((node for node in m.nodes if node.op_type == "Cast"), None)
    is_a = found.a.value is (cast or move).outputs[0]
    side = None if perm is None else (found.a if is_a else found.b).transposed_by(source, perm)
    if side is None:
        return m.no(f"the product can't permute its operand by {list(perm or ())}", source)
    if side.rows_first and not all(
        map(symbolic.known_nonzero, (*_dims_or_zeros(m, x), *_dims_or_zeros(m, y)))
    ):
        hint = "give their sizes: --dim, --dim-range"
        return m.no(
            "onnxruntime's kernel divides by the sizes of batches, and one may be 0", source, hint=hint
        )
    if cast is not None:
        side = replace(side, value=op.like(cast, [source]))
    return _write(op, m, replace(found, a=side) if is_a else replace(found, b=side))


@fusion(
    lambda op, x, y: (op.Transpose(one) for one in _products(op, x, y)),
    phase=2,
    pattern="FusedMatMul",
    anchors=(),
    tags=("onnxscript:fused-matmul",),
)
def transpose_of_fused_matmul(op: Builder, m: Match) -> Outcome:
    """Transpose(a @ b) → FusedMatMul(b, a, transA=1, transB=1), in each batch."""
    found, perm = _read(m, m.node("product")), perm_of(m, m.root)
    if perm is None or perm != (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2):
        return m.no("it does not swap the last two axes", m.root.inputs[0])
    a, b = (replace(side, swapped=not side.swapped) for side in (found.b, found.a))
    return _write(op, m, replace(found, a=a, b=b))


def _scaled(op: Any, x: Any, y: Any, c: Any) -> Iterator[Any]:
    for one in _products(op, x, y):
        yield op.Mul(one, c.constant())
        yield op.Div(one, c.constant())
    for scale in ("Mul", "Div"):
        yield from _products(op, getattr(op, scale)(x, c.constant(), tag="scale"), y)
        yield from _products(op, x, getattr(op, scale)(y, c.constant(), tag="scale"))


@fusion(
    _scaled,
    phase=2,
    pattern="FusedMatMul",
    anchors=(),
    tags=("onnxscript:fused-matmul", "onnxruntime:MatMulScaleFusion"),
)
def scale_into_fused_matmul(op: Builder, m: Match, c: ir.Value) -> Outcome:
    """c * (a @ b), (c * a) @ b → FusedMatMul(a, b, alpha=c)."""
    at_root = m.root.op_type in ("Mul", "Div")
    node, scale = (m.node("product"), m.root) if at_root else (m.root, m.node("scale"))
    found, scaled = _read(m, node), times_number(scale)
    if scaled is None:
        return m.no("it is not scaled by one number", c)
    source, factor = scaled
    if not same_shape(m, m.shape(scale.outputs[0]), m.shape(source)):
        return m.no("the number may widen the tensor", c)
    found = replace(found, alpha=found.alpha * factor)
    if not at_root:
        is_a = found.a.value is scale.outputs[0]
        side = replace(found.a if is_a else found.b, value=source)
        found = replace(found, a=side) if is_a else replace(found, b=side)
    return _write(op, m, found)
