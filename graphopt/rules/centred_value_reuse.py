"""Reuse of an existing difference from a mean."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks.broadcasting import require_right_alignment
from graphopt.rules.building_blocks.element_type_sets import FLOATS

#: Maximum number of nodes visited upwards from the scale, in search of the difference that its variance
#: reads.
_FAR = 12


@rule(
    lambda op, x, mean, s, b: op.Add(op.Mul(x, s), op.Sub(b, op.Mul(mean, s))),
    lambda op, x, mean, s, b: op.Add(op.Mul(x, s), op.Add(b, op.Neg(op.Mul(mean, s)))),
    lambda op, x, mean, s, b: op.Add(op.Mul(x, s), op.Add(b, op.Mul(op.Neg(mean), s))),
    lambda op, x, mean, s, b: op.Sub(op.Add(op.Mul(x, s), b), op.Mul(mean, s)),
    lambda op, x, mean, s: op.Sub(op.Mul(x, s), op.Mul(mean, s)),
    lambda op, x, mean, s: op.Add(op.Mul(x, s), op.Neg(op.Mul(mean, s))),
    lambda op, x, mean, s: op.Add(op.Mul(x, s), op.Mul(op.Neg(mean), s)),
    numerics=Reassociates,
    exclusive=True,
)
def scale_difference(
    op: Builder, m: Match, x: ir.Value, mean: ir.Value, s: ir.Value, b: ir.Value | None
) -> Outcome:
    """x * s + (b - mean * s) → (x - mean) * s + b, if s depends on x - mean."""
    require_right_alignment(m)
    if m.dtype(x) not in FLOATS:
        return m.no("not a floating-point type, or an unknown one", x)
    difference = _difference(m, x, mean, s)
    if difference is None:
        return m.no("x - mean is not computed for the scale", x)
    scaled = op.Mul(difference, s)
    return scaled if b is None else op.Add(scaled, b)


def _difference(m: Match, x: ir.Value, mean: ir.Value, s: ir.Value) -> ir.Value | None:
    """The result of ``x - mean``, if ``s`` depends on it."""
    pending, visited = [s], {s}
    for _ in range(_FAR):
        if not pending:
            break
        node = pending.pop(0).producer()
        if node is None or node.graph is not m.graph:
            continue
        if node.op_type == "Sub" and not node.domain and node.inputs[0] is x and node.inputs[1] is mean:
            return node.outputs[0]
        more = [value for value in node.inputs if value is not None and value not in visited]
        pending += more
        visited.update(more)
    return None
