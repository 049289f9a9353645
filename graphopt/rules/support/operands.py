"""Operands and attributes of operators, what is known of them, and which operators can be written."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Refusal
from graphopt.rewrite.matcher import Match


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index``; ``None`` where it is missing."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer_of(
    value: ir.Value | None, *op_types: str, domains: Container[str] = ("",), graph: ir.Graph | None = None
) -> ir.Node | None:
    """The node that makes ``value``, if it is one of ``op_types`` (any if none are named).

    Args:
        domains: of the operators; by default, those of the standard.
        graph: that the node must stand in.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain not in domains or node.overload:
        return None
    if (op_types and node.op_type not in op_types) or (graph is not None and node.graph is not graph):
        return None
    return node


def too_old(m: Match, op_type: str, x: ir.Value, since: int) -> Refusal | None:
    """Why the standard's ``op_type``, which came with opset ``since``, can't be written here, if it can't."""
    if m.version >= since:
        return None
    hint = f"raise it: --target-opset {since}; --tune tries whether it pays"
    return m.no(f"there is no {op_type} before opset {since}", x, hint=hint)


def unavailable(
    m: Match, op_type: str, x: ir.Value, *, domain: str = ir.MICROSOFT, since: int = 1
) -> Refusal | None:
    """Why there can be no kernel of ``op_type`` for numbers such as ``x`` here, if there can't.

    Args:
        domain: of onnxruntime's own operators, or of the standard's.
        since: the standard's opset that brought it.
    """
    if domain and m.cx.options.portable:
        return m.no(f"{op_type} is not an operator of the ONNX standard", x, hint="leave out --portable")
    dtype, version = m.dtype(x), 1 if domain else max(m.version, since)
    if not m.cx.target.has_kernel(op_type, domain, version, dtype):
        told = "unknown type" if dtype is None else dtype.name.lower()
        return m.no(f"the target has no kernel for {op_type} of {told}", x)
    return None if domain else too_old(m, op_type, x, since)


def other_operand(node: ir.Node, x: ir.Value) -> ir.Value:
    """The operand of ``node``, which has two, beside ``x``; ``x`` itself where it is both."""
    a, b = node.inputs
    other = b if a is x else a
    assert other is not None
    return other


def ints_of(m: Match, node: ir.Node, index: int, name: str, default: Any = None) -> Any:
    """Integers in input ``index`` or attribute ``name``; ``default`` without either, ``None`` if unknown."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return None if attribute.is_ref() else tuple(attribute.value)
    value = operand(node, index)
    return default if value is None else m.ints(value)


def int_of(m: Match, node: ir.Node, name: str, default: int) -> int:
    """Integer attribute ``name``."""
    value = m.attribute(node, name)
    return default if value is None else int(value)


def same_shape(m: Match, a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes are provably equal."""
    return a is not None and b is not None and len(a) == len(b) and all(map(m.cx.facts.dim_equal, a, b))


#: Why a fused operator, whose result has the shape of its operand, can't stand for a pattern.
WIDENED = "the result has another shape, or an unknown one: a constant may broadcast it"


def keeps_shape_of(m: Match, x: ir.Value) -> bool:
    """Whether the root gives the shape of ``x``, whatever it broadcasts it with."""
    return same_shape(m, m.shape(m.root.outputs[0]), m.shape(x))


def has_one_element(m: Match, value: ir.Value | None) -> bool:
    """Whether ``value`` is known to have one element."""
    shape = None if value is None else m.shape(value)
    return shape is not None and all(dim == 1 for dim in shape)
