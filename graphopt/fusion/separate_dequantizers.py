"""Give readers of a DequantizeLinear a copy of it, so that each kernel reads the quantized value.

onnxruntime computes a product on integers if it alone reads the DequantizeLinear of each operand, and copies
a DequantizeLinear that several nodes read (``EnsureUniqueDQForNodeUnit``).
"""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.ort_overlap import INTEGER_KERNELS

#: Operators that read the shape of an operand only.
_SIZES = frozenset({"Shape", "Size"})
_BY = "fuse-groups"


def separate_dequantizers(model: ir.Model, cx: Context) -> None:
    """Copy each DequantizeLinear for its readers, in all graphs of ``model``.

    Each product has its own copy; for a constant, each reader has one. Sizes are read from the quantized
    tensor.
    """
    for graph in list(ir.graphs_of(model)):
        for node in list(graph):
            if node.op_type == "DequantizeLinear" and node.domain in ("", ir.MICROSOFT):
                _separate(node, cx)


def _separate(node: ir.Node, cx: Context) -> None:
    value, data = node.outputs[0], node.inputs[0]
    readers = list(dict.fromkeys(ir.readers(value)))
    sizes = [reader for reader in readers if reader.domain == "" and reader.op_type in _SIZES]
    for reader in sizes:
        cx.edit.set_input(reader, 0, data)
    readers = [reader for reader in readers if reader not in sizes]
    is_constant = data is not None and ir.constant_of(data) is not None
    separate = [reader for reader in readers if is_constant or _is_product(reader)]
    if len(separate) == len(readers) and not value.is_graph_output():
        separate = separate[1:]  # the first one keeps the node
    for reader in separate:
        copy = cx.edit.make_node(
            node.op_type,
            list(node.inputs),
            node.attributes.values(),
            domain=node.domain,
            name=f"{ir.label(node)}_of_{ir.label(reader)}",
        )
        cx.edit.insert_after(node, [copy])
        for index, operand in enumerate(reader.inputs):
            if operand is value:
                cx.edit.set_input(reader, index, copy.outputs[0])
        cx.edit.note_origin([copy], [node], _BY)


def _is_product(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in INTEGER_KERNELS
