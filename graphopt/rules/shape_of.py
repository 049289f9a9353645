"""Shape and Size of tensors of which nothing else is read."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Exact, Match, Outcome, rule
from graphopt.rewrite.builder import Builder


@rule(
    lambda op, x: op.one_of("Shape", "Size")(x),
    numerics=Exact,
    tags=("onnxruntime:PreShapeNodeElimination",),
)
def shape_of_operand(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Shape(Relu(x)) = Shape(x), where nothing else reads the Relu: an operand of the same shape will do."""
    producer = x.producer()
    if producer is None or not m.only_use(x) or not m.cx.is_deterministic(producer):
        return m.no("it is not computed for the shape alone", x)
    for operand in producer.inputs:
        if operand is not None and m.cx.facts.shape_equal(operand, x):
            return op.like(m.root, [operand])
    return m.no("it has the shape of no operand", x)
