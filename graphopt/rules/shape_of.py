"""Shape and Size of tensors whose elements are not read."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.kernel_availability import require_kernel


@rule(
    lambda op, x: op.one_of("Shape", "Size")(x),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxruntime:PreShapeNodeElimination",),
)
def shape_of_operand(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Shape(f(x)) → Shape(x), if f keeps the shape and has no other readers; likewise Size."""
    producer = x.producer()
    if producer is None or not m.only_use(x) or not m.cx.is_deterministic(producer):
        return m.no("it is not read for its shape alone", x)
    for operand in producer.inputs:
        if operand is not None and m.cx.facts.shape_equal(operand, x):
            if m.dtype(operand) != m.dtype(x):  # not all types have kernels, such as Size of bfloat16
                require_kernel(m, m.root.op_type, operand, domain="")
            return op.like(m.root, [operand])
    return m.no("no operand has the same shape", x)
