"""The graphs that operations create, by the names of PyTorch's JIT, and their text, which parses again."""

from __future__ import annotations

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.ir.io import codecs

#: Titles of graphs by their names in log specifications.
GRAPHS = {
    "profiled-graph": "Profiled graph",
    "optimized-graph": "Optimized graph",
    "forward-graph": "Forward graph",
    "backward-graph": "Backward graph",
}
#: The name of all graphs in log specifications.
ALL_GRAPHS = "graphs"
#: Number of elements up to which the contents of initializers are printed.
_MOST_ELEMENTS = 256
#: Size in bytes from which tensors may be in another file: more than any tensor has.
_ALL_INLINE = 1 << 62


def graph_text(model: ir.Model) -> str:
    """``model`` as ONNX text, or as JSON IR if it has no ONNX text; both parse again.

    Large initializers are inputs of the text, without their contents.
    """
    shown = model.clone()
    shown.meta.update(model.meta)
    edit = ir.Editor(shown)
    for value in list(shown.graph.initializers.values()):
        if value.const_value is not None and value.const_value.size > _MOST_ELEMENTS:
            edit.to_input(value)
    try:
        found = codecs.TEXT.save(shown, _ALL_INLINE)
    except UnsupportedModel:
        found = codecs.JSON_IR.save(shown, _ALL_INLINE)
    return b"".join(found).decode()
