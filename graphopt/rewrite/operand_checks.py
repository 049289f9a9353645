"""Checks of single operands and attributes against a pattern."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.analysis.shape_inference import fills
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.rewrite.pattern import Var


def attribute_of(node: ir.Node, name: str, version: int) -> Any:
    """Attribute ``name`` as a Python value, or its default at opset ``version``; ``None`` without either.

    For a reference to a function's attribute, the value is unknown, and the :class:`ir.Attr` is returned.
    """
    attribute = node.attributes.get(name)
    if attribute is None:
        return traits.default_attribute(node.domain, node.op_type, version, name)
    return attribute if attribute.is_ref() else attribute.value


def is_number(value: ir.Value, number: float, cx: Context) -> bool:
    """Whether every element of ``value`` is known to be ``number``."""
    tensor = ir.constant_of(value)
    if tensor is None:
        return fills.is_number(cx.facts.fill(value), number)
    found = fills.is_number(ir.fill_of_tensor(tensor), number)
    if found:
        ir.read(value)
    return found


def may_bind(variable: Var, value: ir.Value | tuple[ir.Value | None, ...] | None) -> bool:
    """Whether the kind of ``variable`` permits ``value``: an operand, all remaining ones, or ``None``."""
    if value is None:
        return variable.kind == "optional"
    return variable.kind != "constant" or (isinstance(value, ir.Value) and ir.computable(value) is not None)
