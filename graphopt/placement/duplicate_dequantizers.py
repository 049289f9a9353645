"""onnxruntime's copies of DequantizeLinear, one for each reader (``ensure_unique_dq_for_node_unit.cc``)."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context

#: The suffix of the names of copies.
_COPY = "/duplicated"


def duplicate_dequantizers(cx: Context) -> None:
    """Copy each DequantizeLinear for the inputs that read it.

    The first input keeps the node, unless the value is an output or a body reads it.
    """
    for graph in ir.with_bodies(cx.model.graph):
        for node in list(graph):
            if node.op_type == "DequantizeLinear" and node.domain in ("", ir.MICROSOFT):
                _duplicate(node, cx)


def _duplicate(node: ir.Node, cx: Context) -> None:
    value = node.outputs[0]
    uses = list(value.uses())
    own = [use for use in uses if use.node.graph is node.graph]
    is_kept = not value.is_graph_output() and len(own) == len(uses)
    for reader, index in own[is_kept:]:
        copy = cx.edit.make_node(
            node.op_type,
            node.inputs,
            node.attributes.values(),
            domain=node.domain,
            name=f"{ir.label(node)}{_COPY}",
        )
        cx.edit.insert_after(node, [copy])
        cx.edit.set_input(reader, index, copy.outputs[0])
        cx.edit.note_origin([copy], [node], "placement")
