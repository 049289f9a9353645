"""Chains of changes to a sequence are replaced by one SequenceConstruct of the result."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.operands import operand

_MUTATIONS = ("SequenceInsert", "SequenceErase")


@rule(
    lambda op, s, rest: op.one_of(*_MUTATIONS)(s, rest.rest()),
    numerics=Exact,
    tags=("onnxscript:fold-sequence-construct",),
)
def construct_mutated_sequence(op: Builder, m: Match, s: ir.Value) -> Outcome:
    """SequenceInsert([x], y) → [x, y]; SequenceErase([x, y], 0) → [y]; chains of both."""
    if _step_after(m) is not None:
        return m.no("the next mutation includes this one", m.root.outputs[0])
    steps, start = _steps(m)
    if start is None:
        return m.no("the sequence is not constructed here, or has other readers", s)
    elements: list[ir.Value | None] = [] if start.op_type == "SequenceEmpty" else list(start.inputs)
    for step in reversed(steps):
        _apply(m, step, elements)
    return op.SequenceConstruct(*elements) if elements else m.no("the sequence becomes empty")


def _step_after(m: Match) -> ir.Node | None:
    """The only reader of the root's output, if it also changes the sequence."""
    output = m.root.outputs[0]
    reader = ir.only_reader(output) if m.only_use(output) else None
    return reader if reader is not None and _is_plain(m, reader, _MUTATIONS) else None


def _steps(m: Match) -> tuple[list[ir.Node], ir.Node | None]:
    """The changes that end in the root, last first, and the node that constructs the sequence.

    A sequence with other readers ends the chain. It is a separate root, so no part of a chain is visited
    repeatedly.
    """
    steps = [m.root]
    while True:
        value = steps[-1].inputs[0]
        producer = None if value is None else value.producer()
        if value is None or producer is None:
            return steps, None
        if _is_plain(m, producer, ("SequenceConstruct", "SequenceEmpty")):
            return steps, producer
        if not _is_plain(m, producer, _MUTATIONS) or not m.only_use(value):
            return steps, None
        steps.append(producer)


def _is_plain(m: Match, node: ir.Node, op_types: tuple[str, ...]) -> bool:
    return node.op_type in op_types and not node.domain and node.graph is m.graph


def _apply(m: Match, step: ir.Node, elements: list[ir.Value | None]) -> None:
    """Apply ``step`` to ``elements``. Positions may be negative, as in Python; the default is the end."""
    inserts = step.op_type == "SequenceInsert"
    position = operand(step, 1 + inserts)
    size = len(elements)
    index = (size if inserts else -1) if position is None else ir.scalar_of(position)
    if index is None or not -size <= index < size + inserts:
        m.refuse("the position is unknown or out of range", position)
    if inserts:
        elements.insert(int(index), step.inputs[1])
    else:
        del elements[int(index)]
