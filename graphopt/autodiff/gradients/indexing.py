"""Operators that pick and place elements by indices."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.autodiff.forward import Forward
from graphopt.autodiff.gradient import gradient
from graphopt.autodiff.operations import Operations


@gradient("OneHot")
def one_hot(op: Operations, node: Forward, dy: ir.Value) -> Any:
    """To the value of what is off and that of what is on, dy of the places that have it."""
    zero, one = op.number(0.0, dy), op.number(1.0, dy)
    bits = op.Concat(op.Unsqueeze(zero, [0]), op.Unsqueeze(one, [0]), axis=0)
    on = op.OneHot(node.x, node.input(1), bits, axis=node.attribute("axis", -1))
    lit = op.ReduceSum(op.Mul(dy, on), keepdims=0)
    dark = op.Sub(op.ReduceSum(dy, keepdims=0), lit)
    return None, None, op.Concat(op.Unsqueeze(dark, [0]), op.Unsqueeze(lit, [0]), axis=0)
