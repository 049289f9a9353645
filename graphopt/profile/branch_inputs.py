"""Inputs whose contents alone determine the branches that a model executes."""

from __future__ import annotations

from graphopt import ir
from graphopt.ops import traits

_INTEGERS = frozenset(
    {
        *(ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)


def branch_inputs(model: ir.Model) -> frozenset[str]:
    """Names of inputs that, together with shapes and constants, determine the condition of an If.

    A specialization for fixed shapes must also fix the contents of these inputs. Otherwise it would keep a
    branch for other contents, whose shapes may contradict the fixed shapes. A condition that depends on any
    other data, or on loop-carried values, contributes no input.
    """
    found: set[str] = set()
    for node in ir.walk_nodes(model.graph):
        if node.op_type == "If" and node.domain in ("", "ai.onnx") and node.inputs[0] is not None:
            found |= _sources(node.inputs[0], model) or frozenset()
    return frozenset(found)


def _sources(condition: ir.Value, model: ir.Model) -> frozenset[str] | None:
    """The inputs of ``model`` that determine ``condition``; ``None`` if it depends on anything else."""
    inputs = {value: value.name for value in model.graph.inputs if value.name}
    found, visited, pending = set[str](), {condition}, [condition]
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
        if traits.reads_only_shape(node):
            continue
        if node.domain not in ("", "ai.onnx") or ir.bodies(node):
            return None
        fresh = [operand for operand in node.inputs if operand is not None and operand not in visited]
        visited.update(fresh)
        pending += fresh
    return frozenset(found)
