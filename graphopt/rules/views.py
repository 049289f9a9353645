"""A normal form of views."""

from __future__ import annotations

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.reshape_targets import nonzero_dims, reshape, reshape_target
from graphopt.rules.building_blocks.shape_equality import same_shape

#: Opset version before which Reshape had its shape as an attribute, and supported fewer types.
_SHAPE_INPUT = 5


@rule(
    lambda op, x, rest: op.one_of(*traits.RESHAPES)(x, rest.rest()),
    numerics=Exact,
    proven_exact=True,
    pass_="views-to-reshape",
)
def views_to_reshape(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """view(view(x)), view(x) → Reshape(x, constant), if all dims but one are known."""
    if m.version < _SHAPE_INPUT:
        return m.no("Reshape has no shape input at this opset")
    inner = x.producer()
    known = nonzero_dims(m, m.root)
    base = x
    if inner is not None and inner.graph is m.graph and _is_view(inner) and inner.inputs[0] is not None:
        base = inner.inputs[0]
        known += nonzero_dims(m, inner)
    source, result = m.shape(base), m.shape(m.root.outputs[0])
    if same_shape(m, source, result):
        return base
    target = reshape_target(m, source, result, known)
    if target is None:
        return m.no("two dims or more are unknown", m.root.outputs[0])
    if base is x and _is_reshape_to(m.root, target):
        return m.no("it is already in this form")
    return reshape(op, m, base, target)


def _is_view(node: ir.Node) -> bool:
    return node.op_type in traits.RESHAPES and not node.domain and not node.overload


def _is_reshape_to(node: ir.Node, target: tuple[int, ...]) -> bool:
    """Whether ``node`` is the Reshape to the constant ``target``."""
    constant = None if node.op_type != "Reshape" else ir.constant_of(operand(node, 1))
    if constant is None or node.attributes or tuple(constant.numpy().tolist()) != target:
        return False
    ir.read(operand(node, 1))
    return True
