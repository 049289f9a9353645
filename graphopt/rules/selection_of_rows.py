"""Selections of rows, such as the last position of a sequence, before products.

Language models compute the logits of all positions, and generating programs read those of the last one. If
the model itself selects this position, the product with the matrix of the vocabulary needs only one row.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import normalization_operators
from graphopt.rules.building_blocks.axes import axis_of
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.slices_and_pads import slice_ranges

#: Elementwise operators, perhaps with a constant operand, between the product and the selection.
_ELEMENTWISE = ("Add", "Cast", "Div", "Mul", "Sub", "Tanh")


@rule(
    lambda op, y, bounds: op.Slice(y, bounds.rest()),
    lambda op, y, i: op.Gather(y, i),
    numerics=Reassociates,
)
def select_before_product(op: Builder, m: Match, y: ir.Value) -> Outcome:
    """Slice(f(x @ w)) → f(Slice(x) @ w), if it selects rows; likewise a Gather of one row.

    f are elementwise. The selection also moves before a normalization of x, even if this was fused to one
    operator only after the selection had moved before the product.
    """
    chain = _chain_to_product(m, y) or _norm_before_product(m, y)
    if not chain:
        return m.no("it does not select from the product with a matrix", y)
    if not _selects_rows(m, y):
        return m.no("it does not select rows", y)
    last, index = chain[-1]
    selected = op.like(m.root, [last.inputs[index], *m.root.inputs[1:]])
    for node, index in reversed(chain):
        operands = [*node.inputs[:index], selected, *node.inputs[index + 1 :]]
        is_norm = node.op_type in normalization_operators.OPERATORS
        selected = op.like(node, operands, **({"axis": -1} if is_norm else {}))
    return selected


def _selects_rows(m: Match, y: ir.Value) -> bool:
    """Whether the root selects a range of rows of ``y``, or one, but no columns."""
    rank = m.rank(y)
    if rank is None:
        return False
    if m.root.op_type == "Slice":
        ranges = slice_ranges(m, m.root)
        return ranges is not None and all(selected.axis != rank - 1 for selected in ranges)
    shape, axis = m.shape(m.root.inputs[1]), axis_of(m, m.root, rank)
    return shape in ((), (1,)) and axis is not None and axis < rank - 1 and rank > 2


def _chain_to_product(m: Match, y: ir.Value) -> list[tuple[ir.Node, int]]:
    """The nodes from ``y`` up to a product or a normalization before it, with the index of their operand."""
    chain: list[tuple[ir.Node, int]] = []
    value = y
    while m.only_use(value):
        node = producer_of(value, "MatMul", *_ELEMENTWISE, graph=m.graph)
        if node is None:
            return []
        if node.op_type == "MatMul":
            x, w = node.inputs
            assert x is not None
            if m.rank(w) != 2 or m.rank(x) != m.rank(y):
                return []
            return [*chain, (node, 0), *_norm_before(m, x)]
        index = _index_of_tensor(m, node)
        data = None if index is None else node.inputs[index]
        if index is None or data is None or m.rank(data) != m.rank(y):
            return []
        chain.append((node, index))
        value = data
    return []


def _norm_before_product(m: Match, y: ir.Value) -> list[tuple[ir.Node, int]]:
    """The normalization that computes ``y``, if only a product reads the selection."""
    reader = ir.only_reader(m.root.outputs[0])
    return [] if reader is None or reader.op_type != "MatMul" else _norm_before(m, y)


def _index_of_tensor(m: Match, node: ir.Node) -> int | None:
    """The index of the operand of ``node`` that is no constant number or row; ``None`` if there are more."""
    found = [index for index, x in enumerate(node.inputs) if ir.constant_of(x) is None]
    constants = [x for x in node.inputs if ir.constant_of(x) is not None]
    return found[0] if len(found) == 1 and all(m.rank(x) in (0, 1) for x in constants) else None


def _norm_before(m: Match, x: ir.Value) -> list[tuple[ir.Node, int]]:
    """The normalization of rows that computes ``x`` for the product only, if there is one."""
    node = producer_of(x, *normalization_operators.OPERATORS, graph=m.graph)
    rank = m.rank(x)
    if node is None or rank is None or not m.only_use(x) or len(node.outputs) > 1:
        return []
    is_of_rows = axis_of(m, node, rank, -1) == rank - 1 and all(m.rank(w) == 1 for w in node.inputs[1:] if w)
    return [(node, 0)] if is_of_rows else []
