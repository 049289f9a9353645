"""index-split-lists: SequenceAt(SplitToSequence(x), i) → Gather(x, i)."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.passes.base import Pass
from graphopt.rewrite.replacement_builder import Builder
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class IndexSplitLists(Pass):
    """Replace reads of a sequence by Gathers, if the sequence is a tensor split into parts of size 1.

    The index and the size of the tensor may be unknown, and the reader may be in a body, such as a Loop over
    the sequence. All readers of the sequence must read single elements.
    """

    name: ClassVar[str] = "index-split-lists"
    operators: ClassVar[frozenset[str]] = frozenset({"SplitToSequence"})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Process each SplitToSequence."""
        for graph in ir.graphs_of(model):
            for node in list(graph):
                if node.op_type == "SplitToSequence" and node.domain == "":
                    self._index(node, cx)

    def _index(self, split: ir.Node, cx: Context) -> None:
        readers = list(ir.readers(split.outputs[0]))
        reason = _obstacle(split, readers, cx)
        if reason is not None:
            cx.refuse(Refusal(self.name, ir.label(split), reason))
            return
        action = cx.begin_rewrite(self.name, split)
        if action is None:
            return
        data, (axis, keeps) = split.inputs[0], _axis_and_keepdims(split)
        made: list[ir.Node] = []
        for reader in readers:
            op, place = Builder(cx, reader), reader.inputs[1]
            if keeps:
                place = _as_vector(op, place, cx.version(reader))
            element = op.Gather(data, place, axis=axis)
            added = op.commit()
            cx.edit.note_origin(added, [reader, split], self.name)
            cx.edit.replace(reader.outputs[0], element)
            cx.edit.remove(reader)
            made += added
        cx.edit.remove(split)
        cx.end_rewrite(action, split, made)


def _obstacle(split: ir.Node, readers: list[ir.Node], cx: Context) -> str | None:
    if len(split.inputs) > 1 and split.inputs[1] is not None:
        return "its parts are not known to be of size 1"
    if any(attribute.is_ref() for attribute in split.attributes.values()):
        return "an attribute is a parameter of the function"
    if split.outputs[0].is_graph_output() or not readers:
        return "the sequence itself is needed, or unused"
    for reader in readers:
        if reader.op_type != "SequenceAt" or reader.domain != "":
            return f"{reader.op_type} {ir.label(reader)!r} needs the sequence itself"
        if reader.inputs[1] is None or cx.rank(reader.inputs[1]) != 0:
            return "the position of an element is not known to be a scalar"
    return None


def _axis_and_keepdims(split: ir.Node) -> tuple[int, bool]:
    """The axis, and whether the parts keep it."""
    axis, keeps = split.attributes.get("axis"), split.attributes.get("keepdims")
    return 0 if axis is None else axis.as_int(), keeps is None or keeps.as_int() != 0


def _as_vector(op: Builder, place: ir.Value | None, version: int) -> ir.Value:
    """The scalar ``place`` as a vector of one element."""
    index = ir.scalar_of(place)
    if index is not None:
        return op.ints(int(index))
    vector = op.Unsqueeze(place, op.ints(0)) if version >= 13 else op.Unsqueeze(place, axes=[0])
    assert isinstance(vector, ir.Value)
    return vector
