"""Softmax along an axis, from its result alone."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.autodiff.forward import Forward
from graphopt.autodiff.gradient import gradient
from graphopt.autodiff.operations import Operations


@gradient("Softmax", since=13)
def softmax(op: Operations, node: Forward, dy: ir.Value) -> Any:
    """y (dy - Σ y dy)."""
    axis = node.attribute("axis", -1)
    total = op.ReduceSum(op.Mul(dy, node.y), [axis], keepdims=1)
    return op.Mul(op.Sub(dy, total), node.y)


@gradient("LogSoftmax", since=13)
def log_softmax(op: Operations, node: Forward, dy: ir.Value) -> Any:
    """dy - exp(y) Σ dy."""
    axis = node.attribute("axis", -1)
    total = op.ReduceSum(dy, [axis], keepdims=1)
    return op.Sub(dy, op.Mul(op.Exp(node.y), total))
