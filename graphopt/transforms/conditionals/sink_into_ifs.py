"""sink-into-ifs: code sinking of views into branches."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.if_branches import branches_of, insert_if, positions
from graphopt.ops import traits
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Groups of operators: two adjacent operators of one group merge, or cancel each other.
_GROUPS = (frozenset(traits.RESHAPES), frozenset({"Transpose"}))


@dataclass(frozen=True)
class SinkIntoIfs(Pass):
    """Sink a view of an If's output into both branches, if each ends in an Identity or another such view.

    For example, an Unsqueeze of the output of ``If(c) {Identity(x)} else {Unsqueeze(x)}`` moves into both
    branches. The rules of ``peephole`` then merge adjacent views, so that each branch has one Unsqueeze.
    """

    name: ClassVar[str] = "sink-into-ifs"
    operators: ClassVar[frozenset[str]] = frozenset({"If"})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Process outer Ifs first: a view may then sink further, into inner Ifs."""
        for graph in cx.graphs:
            position: dict[ir.Node, int] = {}
            for node in list(graph):
                if branches_of(node) is not None:
                    position = position or positions(graph)
                    self._sink_all(node, position, cx)

    def _sink_all(self, node: ir.Node, position: dict[ir.Node, int], cx: Context) -> None:
        index = 0
        while index < len(node.outputs):
            branches = branches_of(node)
            view = _view_behind(node.outputs[index], position, position[node])
            if (
                branches is None
                or view is None
                or not all(_joins(branch, index, view) for branch in branches)
            ):
                index += 1
                continue
            action = cx.begin_rewrite(self.name, view)
            if action is None:
                return
            made = [_apply_in_branch(branch, index, view, cx) for branch in branches]
            outputs = [*node.outputs]
            outputs[index] = view.outputs[0]
            new = insert_if(cx, self.name, node, [node, view], branches, outputs)
            position[new] = position[node]
            cx.edit.remove(view)
            cx.edit.remove(node)
            cx.end_rewrite(action, view, [new, *made])
            node = new


def _view_behind(output: ir.Value, position: dict[ir.Node, int], before: int) -> ir.Node | None:
    """The view that is the only reader of ``output``, if its other operands are available before the If."""
    view = ir.only_reader(output)
    producer = output.producer()
    if view is None or producer is None or view.graph is not producer.graph or output.is_graph_output():
        return None
    if (
        view.domain != ""
        or not any(view.op_type in group for group in _GROUPS)
        or view.inputs[0] is not output
    ):
        return None
    for value in view.inputs[1:]:
        source = None if value is None else value.producer()
        late = source is not None and source.graph is view.graph and position[source] >= before
        if late and ir.constant_of(value) is None:
            return None
    return view


def _joins(branch: ir.Graph, index: int, view: ir.Node) -> bool:
    """Whether ``view`` merges with the node that computes output ``index`` of ``branch``, or replaces it."""
    output = branch.outputs[index]
    last = output.producer()
    if last is None or last.graph is not branch or last.domain != "" or ir.use_count(output):
        return False
    if sum(other is output for other in branch.outputs) > 1:
        return False
    return last.op_type == "Identity" or any({last.op_type, view.op_type} <= group for group in _GROUPS)


def _apply_in_branch(branch: ir.Graph, index: int, view: ir.Node, cx: Context) -> ir.Node:
    """Replace output ``index`` of ``branch`` by ``view`` of it; returns the copy of the view."""
    output = branch.outputs[index]
    last = output.producer()
    assert last is not None
    passed_on = last.op_type == "Identity"
    copy = cx.edit.make_node(
        view.op_type,
        [last.inputs[0] if passed_on else output, *(_inside(branch, value, cx) for value in view.inputs[1:])],
        list(view.attributes.values()),
        name=ir.label(view),
    )
    cx.edit.append(branch, copy)
    cx.edit.note_origin([copy], [view], SinkIntoIfs.name)
    cx.edit.set_output(branch, index, copy.outputs[0])
    if passed_on:
        cx.edit.remove(last)
    return copy


def _inside(branch: ir.Graph, value: ir.Value | None, cx: Context) -> ir.Value | None:
    """``value`` as an operand in ``branch``: the output of a Constant node is copied to a constant there."""
    tensor = ir.constant_of(value)
    if value is None or tensor is None or value.producer() is None:
        return value
    return cx.edit.constant(branch, tensor, value.name or "constant")
