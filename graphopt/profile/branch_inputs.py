"""Inputs whose contents alone choose the branches of a model."""

from __future__ import annotations

from graphopt import ir

#: Operators whose results depend on the shape of their input, and not on its contents.
_SHAPES = frozenset({"Shape", "Size"})
_INTEGERS = frozenset(
    {
        *(ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)


def branch_inputs(model: ir.Model) -> frozenset[str]:
    """Names of inputs from whose contents, with nothing but shapes and constants, an If's condition follows.

    A specialization for fixed shapes has to fix their contents as well: it would otherwise keep the branch
    for other contents, whose shapes may contradict the ones that it fixes. Conditions that depend on other
    data, or on values that a loop carries, name no input.
    """
    found: set[str] = set()
    for node in ir.walk_nodes(model.graph):
        if node.op_type == "If" and node.domain in ("", "ai.onnx") and node.inputs[0] is not None:
            found |= _sources(node.inputs[0], model) or frozenset()
    return frozenset(found)


def _sources(condition: ir.Value, model: ir.Model) -> frozenset[str] | None:
    """The inputs of ``model`` that ``condition`` is computed from; ``None`` if they do not determine it."""
    inputs = {value: value.name for value in model.graph.inputs if value.name}
    found, seen, pending = set[str](), {condition}, [condition]
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            if ir.constant_of(value) is not None:
                continue
            if value not in inputs or value.dtype not in _INTEGERS:
                return None
            found.add(inputs[value])
            continue
        if node.op_type in _SHAPES:
            continue
        if node.domain not in ("", "ai.onnx") or ir.bodies(node):
            return None
        fresh = [operand for operand in node.inputs if operand is not None and operand not in seen]
        seen.update(fresh)
        pending += fresh
    return frozenset(found)
