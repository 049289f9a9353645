"""Profiling nodes: calls of identity functions that mark the values that profiled runs record."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators, traits

#: Scan had a batch axis before this version.
_SCAN_SINCE = 9


def supports_profiling(model: ir.Model, cx: Context, owner: str) -> bool:
    """Whether ``model`` can call profiling functions; otherwise, the refusal is recorded."""
    reason = ir.functions_obstacle(model)
    for (domain, name, _), function in model.functions.items():
        if domain == graphopt_operators.GUARD_DOMAIN and not _is_own(function):
            reason = f"the model has another function {domain}::{name}"
    if reason is not None:
        cx.refuse(Refusal(owner, "", reason))
    return reason is None


def obstacle(graph: ir.Graph, rank: int | None, cx: Context) -> str | None:
    """The reason why profiled runs can't record a value of ``graph`` with this rank; ``None`` if they can.

    A value of a body leaves the body as an output of the node that contains the body. A loop stacks the
    value, which requires a known rank.
    """
    inner = graph
    while (holder := cx.edit.scopes.holder(inner)) is not None:
        if holder.domain != "" or holder.op_type not in traits.CONTROL_FLOW:
            return f"it is in a body of {holder.op_type}"
        missing = 1 if holder.op_type == "Loop" else 0
        if len(inner.outputs) - missing != len(holder.outputs):
            return f"{ir.label(holder)} omits outputs"
        if holder.op_type == "Scan" and cx.version(holder) < _SCAN_SINCE:
            return f"it is in a Scan of an opset below {_SCAN_SINCE}"
        if holder.op_type != "If" and rank is None:
            return "its rank is unknown, and it is in a loop"
        if holder.graph is None:
            return f"{ir.label(holder)} is in no graph"
        inner = holder.graph
    return "it is in a function" if cx.edit.scopes.function(inner) is not None else None


def is_watched(value: ir.Value) -> bool:
    """Whether a profiling node watches ``value``, or a profiling node or a counter returns it."""
    types = graphopt_operators.PROFILE, graphopt_operators.PROFILE_ZERO, graphopt_operators.COUNTER
    if graphopt_operators.is_profiling_node(value.producer(), *types):
        return True
    return any(
        graphopt_operators.is_profiling_node(node, graphopt_operators.PROFILE) for node in ir.readers(value)
    )


def watch(value: ir.Value, op_type: str, cx: Context, owner: str) -> bool:
    """Insert a profiling node between ``value`` and its readers; returns whether that was permitted."""
    node = cx.edit.make_node(
        op_type,
        [value],
        {graphopt_operators.WATCHED: value.name or ""},
        domain=graphopt_operators.GUARD_DOMAIN,
        name=f"{value.name}_{op_type.lower()}",
    )
    action = cx.begin_rewrite(owner, node)
    if action is None:
        cx.edit.discard(node)
        return False
    cx.edit.interpose(value, node)
    cx.edit.import_domain(node)
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    producer = value.producer()
    cx.edit.note_origin([node], [] if producer is None else [producer], owner)
    _define(op_type, cx)
    cx.end_rewrite(action, node, [node])
    return True


def count_runs(graph: ir.Graph, cx: Context, owner: str) -> None:
    """Append a counter of runs to the main graph, unless it has one."""
    if any(graphopt_operators.is_profiling_node(node, graphopt_operators.COUNTER) for node in graph):
        return
    node = cx.edit.make_node(
        graphopt_operators.COUNTER, [], domain=graphopt_operators.GUARD_DOMAIN, name="profiled_runs"
    )
    action = cx.begin_rewrite(owner, node)
    if action is None:
        cx.edit.discard(node)
        return
    cx.edit.append(graph, node)
    cx.edit.import_domain(node)
    _define(graphopt_operators.COUNTER, cx)
    cx.end_rewrite(action, node, [node])


def remove_profiling_nodes(model: ir.Model, cx: Context, owner: str, *op_types: str) -> int:
    """Remove the profiling nodes ``op_types`` and their functions; returns the number of removed nodes."""
    removed = 0
    own = {key for key, function in model.functions.items() if _is_own(function)}
    for graph in ir.graphs_of(model):
        for node in list(graph):
            if not graphopt_operators.is_profiling_node(node, *op_types) or node.op_identifier() not in own:
                continue
            action = cx.begin_rewrite(owner, node)
            if action is None:
                continue
            if node.inputs and node.inputs[0] is not None:
                cx.edit.replace(node.outputs[0], node.inputs[0])
            cx.edit.remove(node)
            cx.end_rewrite(action, node, [])
            removed += 1
    left = {node.op_identifier() for graph in ir.graphs_of(model) for node in graph}
    for key in sorted(own - left):
        if key[1] in op_types:
            cx.edit.remove_function(model.functions[key])
    return removed


def _is_own(function: ir.Function) -> bool:
    """Whether ``function``, perhaps read from a file, is an identity or a counter for profiling."""
    if function.domain != graphopt_operators.GUARD_DOMAIN or len(function) != 1:
        return False
    node = function[0]
    if function.name == graphopt_operators.COUNTER:
        return node.op_type == "Constant" and not function.inputs
    return (
        function.name in (graphopt_operators.PROFILE, graphopt_operators.PROFILE_ZERO)
        and (node.domain, node.op_type) == ("", "Identity")
        and list(node.inputs) == list(function.inputs)
        and list(node.outputs) == list(function.outputs)
    )


def _define(op_type: str, cx: Context) -> None:
    """Define the function ``op_type``, unless the model has it."""
    edit, model = cx.edit, cx.model
    if (graphopt_operators.GUARD_DOMAIN, op_type, "") in model.functions:
        return
    inputs, attributes = [], []
    if op_type == graphopt_operators.COUNTER:
        one = ir.tensor(np.array(1, np.int64))
        body = edit.make_node("Constant", [], {"value": one}, name="one_run")
    else:
        inputs = [ir.Value(name=edit.fresh_name("watched"))]
        attributes = [ir.Attr(graphopt_operators.WATCHED, ir.AttributeType.UNDEFINED, None)]
        body = edit.make_node("Identity", inputs, name="unchanged")
    edit.append(model.graph, body)
    imports = {"": ir.standard_version(model.opset_imports)}
    edit.make_function(
        graphopt_operators.GUARD_DOMAIN, op_type, inputs, body.outputs, [body], attributes, imports
    )
