"""Operands and attributes of operators, and the availability of operators."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Refusal
from graphopt.rewrite import Match
from graphopt.rewrite.matcher import Refused


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index``; ``None`` if it is missing."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer_of(
    value: ir.Value | None, *op_types: str, domains: Container[str] = ("",), graph: ir.Graph | None = None
) -> ir.Node | None:
    """The producer of ``value``, if it is one of ``op_types`` (any operator without any).

    Args:
        domains: the domains of the operators; by default, the standard domain.
        graph: the graph that must contain the producer.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain not in domains or node.overload:
        return None
    if (op_types and node.op_type not in op_types) or (graph is not None and node.graph is not graph):
        return None
    return node


def require_opset(m: Match, op_type: str, x: ir.Value, since: int) -> None:
    """Refuse if the model's opset precedes ``since``, which introduced ``op_type``."""
    if m.version < since:
        hint = f"raise it: --target-opset {since}; --tune tries whether it pays"
        m.refuse(f"there is no {op_type} before opset {since}", x, hint=hint)


def require_kernel(
    m: Match, op_type: str, x: ir.Value, *, domain: str = ir.MICROSOFT, since: int = 1
) -> None:
    """Refuse if the target has no kernel of ``op_type`` for the type of ``x``.

    Args:
        domain: the domain of the operator.
        since: the opset version that introduced a standard operator.
    """
    if domain and m.cx.options.portable:
        m.refuse(f"{op_type} is not an operator of the ONNX standard", x, hint="leave out --portable")
    dtype, version = m.dtype(x), 1 if domain else max(m.version, since)
    if not m.cx.target.has_kernel(op_type, domain, version, dtype):
        type_name = "unknown type" if dtype is None else dtype.name.lower()
        m.refuse(f"the target has no kernel for {op_type} of {type_name}", x)
    if not domain:
        require_opset(m, op_type, x, since)


def unavailable(
    m: Match, op_type: str, x: ir.Value, *, domain: str = ir.MICROSOFT, since: int = 1
) -> Refusal | None:
    """The refusal of :func:`require_kernel`; ``None`` if the target has a kernel."""
    try:
        require_kernel(m, op_type, x, domain=domain, since=since)
    except Refused as error:
        return error.refusal
    return None


def other_operand(node: ir.Node, x: ir.Value) -> ir.Value:
    """The operand of the binary ``node`` other than ``x``; ``x`` itself if it is both."""
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


#: The refusal if the result of a pattern may not have the shape of its operand.
WIDENED = "the result has another shape, or an unknown one: a constant may broadcast it"


def keeps_shape_of(m: Match, x: ir.Value) -> bool:
    """Whether the root provably has the shape of ``x``."""
    return same_shape(m, m.shape(m.root.outputs[0]), m.shape(x))


def require_shape_of(m: Match, x: ir.Value) -> None:
    """Refuse unless the root provably has the shape of ``x``."""
    if not keeps_shape_of(m, x):
        m.refuse(WIDENED, x)


def has_one_element(m: Match, value: ir.Value | None) -> bool:
    """Whether ``value`` provably has one element."""
    shape = m.shape(value)
    return shape is not None and all(dim == 1 for dim in shape)
