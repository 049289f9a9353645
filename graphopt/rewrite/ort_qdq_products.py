"""Products of dequantized operands that default sessions of onnxruntime load, but can't run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite.ort_qdq_miscompilation import MAX_READERS
from graphopt.rewrite.proposed_rewrite import ProposedRewrite

_DOMAINS = ("", ir.MICROSOFT)


def would_fail(cx: Context, rewrite: ProposedRewrite) -> bool:
    """Whether a product would fail after ``rewrite``, but not before it."""
    replaced, made = rewrite.replacements(), rewrite.made
    readers = (node for old in replaced for node in islice(ir.readers(old), MAX_READERS))
    products = [node for node in (*made, *readers) if _is_product(node)]
    return any(_fails(cx, node, replaced) for node in products) and not any(
        _fails(cx, node, {}) for node in (rewrite.root, *products) if _is_product(node) and node not in made
    )


def _is_product(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "MatMul"


def _fails(cx: Context, product: ir.Node, replaced: Mapping[ir.Value, ir.Value]) -> bool:
    """Whether onnxruntime can't run ``product`` in a default session.

    onnxruntime 1.31 replaces a MatMul of two dequantized operands, the left one of uint8, by
    MatMulIntegerToFloat or QLinearMatMul (MatMulNodeGroupSelector), although both require one scale and one
    zero point for the left operand.
    """
    left, right = (_dequantize_of(product.inputs[index], replaced) for index in (0, 1))
    if left is None or right is None:
        return False
    scale = left.inputs[1]
    shape = None if scale is None else cx.shape(scale)
    data = left.inputs[0]
    return shape not in ((), (1,)) and data is not None and cx.dtype(data) in (ir.DataType.UINT8, None)


def _dequantize_of(value: ir.Value | None, replaced: Mapping[ir.Value, ir.Value]) -> ir.Node | None:
    """The DequantizeLinear that computes ``value`` after the replacement."""
    node = None if value is None else replaced.get(value, value).producer()
    is_dequantize = node is not None and node.domain in _DOMAINS and node.op_type == "DequantizeLinear"
    return node if is_dequantize else None
