"""Return values of bodies as outputs of the nodes that contain the bodies."""

from __future__ import annotations

import numpy as np

from graphopt import ir

#: Attributes of Scan with an entry per stacked output.
_BY_OUTPUT = ("scan_output_axes", "scan_output_directions")


def export_body_value(
    edit: ir.Editor, value: ir.Value, graph: ir.Graph, width: int | None, *, total: bool = False
) -> ir.Value:
    """The value in the main graph that contains the integers of ``value``, which is computed in ``graph``.

    The result is that of the last trip of each enclosing loop, and zeros if the body did not run.

    Args:
        value: a vector of int64 whose first element is not 0.
        width: its number of elements; ``None`` if unknown, which loops do not support.
        total: return the sum over all trips instead.
    """
    while (holder := edit.scopes.holder(graph)) is not None:
        assert holder.graph is not None
        if holder.op_type == "If":
            value = _of_branch(edit, value, graph, holder, width or 1)
        else:
            assert width is not None
            value = _of_trips(edit, value, graph, holder, width, total=total)
        graph = holder.graph
    return value


def _of_branch(edit: ir.Editor, value: ir.Value, branch: ir.Graph, holder: ir.Node, width: int) -> ir.Value:
    """``value`` if ``branch`` runs, or zeros if the other branch runs."""
    for body in ir.bodies(holder):
        if body is branch:
            edit.add_output(body, value)
            continue
        zeros = edit.constant(body, np.zeros(width, np.int64), "not_executed")
        node = edit.make_node("Identity", [zeros], name="not_executed")
        edit.append(body, node)
        _declare(node.outputs[0], None)
        edit.add_output(body, node.outputs[0])
    output = edit.add_node_output(holder, len(holder.outputs))
    _declare(output, None)
    return output


def _of_trips(
    edit: ir.Editor, value: ir.Value, body: ir.Graph, holder: ir.Node, width: int, *, total: bool
) -> ir.Value:
    """``value`` of the last trip of the Loop or Scan ``holder``, or the sum; zeros without a trip."""
    _declare(value, width)
    edit.add_output(body, value)
    for name in _BY_OUTPUT:
        attribute = holder.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            edit.set_attribute(holder, name, [*attribute.as_ints(), 0])
    rows = edit.add_node_output(holder, len(holder.outputs))
    rows.type, rows.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([None, width])
    graph = holder.graph
    assert graph is not None
    zeros = edit.constant(graph, np.zeros((1, width), np.int64), "no_trip")
    whole = edit.make_node("Concat", [zeros, rows], {"axis": 0}, name="trips")
    if total:
        node = _sum_of_rows(edit, whole.outputs[0], graph)
    else:
        last = edit.constant(graph, np.array(-1), "last")
        node = edit.make_node("Gather", [whole.outputs[0], last], {"axis": 0}, name="last_trip")
    for made in (whole, node):
        edit.append(graph, made)
    _declare(node.outputs[0], width)
    return node.outputs[0]


def _sum_of_rows(edit: ir.Editor, rows: ir.Value, graph: ir.Graph) -> ir.Node:
    if ir.standard_version(edit.model.opset_imports) < 13:
        return edit.make_node("ReduceSum", [rows], {"axes": [0], "keepdims": 0}, name="all_trips")
    axis = edit.constant(graph, np.array([0]), "axis")
    return edit.make_node("ReduceSum", [rows, axis], {"keepdims": 0}, name="all_trips")


def _declare(value: ir.Value, width: int | None) -> None:
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([width])
