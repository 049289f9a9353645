"""add-if-then-else: an If that only chooses between two tensors becomes a Where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.control_flow.ifs import Branches, branches_of
from graphopt.control_flow.speculation import cannot_fail
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass

#: Too much work to do for nothing.
_HEAVY = frozenset({"Gemm", "MatMul"})
#: Cost nothing to speak of.
_FREE = frozenset({"Constant", "Identity"})
#: What onnxruntime has a Where for on every device.
_CHOOSABLE = frozenset(
    [
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.STRING,
        ir.DataType.UINT8,
    ]
)


@dataclass(frozen=True)
class AddIfThenElse(Pass):
    """Replace each If that only chooses between two tensors by a Where.

    Both branches run then, so they may hold nothing but constants, Identities and a few cheap
    operators that can't fail, on small tensors. Their results must have one dtype and provably
    one shape. onnxruntime's Where may change the sign of a zero; where every bit must be kept,
    floating-point tensors stay in their If.

    Attributes:
        nodes: operators that compute in both branches together, at most.
        elements: elements that each of them may compute, at most.
    """

    name: ClassVar[str] = "add-if-then-else"
    nodes: int = 4
    elements: int = 4096

    def run(self, model: ir.Model, cx: Context) -> None:
        """Replace inner Ifs first, though none of them makes an outer one trivial."""
        for graph in reversed(list(ir.graphs_of(model))):
            for node in list(graph):
                if node.op_type == "If" and node.domain == "":
                    self._choose(node, cx)

    def _choose(self, node: ir.Node, cx: Context) -> None:
        branches = branches_of(node)
        if branches is None:
            return
        reason = self._obstacle(node, branches, cx)
        if reason is not None:
            cx.refuse(Refusal(self.name, ir.label(node), reason))
            return
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return
        moved = [inner for branch in branches for inner in branch]
        results = [cx.edit.hoist(branch, node)[0] for branch in branches]
        where = cx.edit.make_node("Where", [node.inputs[0], *results], name=ir.label(node))
        cx.edit.insert_before(node, [where])
        cx.edit.note_origin([where], [node], self.name)
        cx.edit.replace(node.outputs[0], where.outputs[0])
        cx.edit.remove(node)
        cx.end_rewrite(action, node, [*moved, where])

    def _obstacle(self, node: ir.Node, branches: Branches, cx: Context) -> str | None:
        """Why ``node`` has to stay an If; ``None`` if a Where does the same."""
        if len(node.outputs) != 1:
            return "it has more than one output"
        if cx.version(node) < 9:
            return "its opset has no Where"
        condition = node.inputs[0]
        if condition is None or cx.rank(condition) != 0:
            return "its condition is not known to be a scalar"
        then, other = branches
        return _unlike(then.outputs[0], other.outputs[0], cx) or self._cost([*then, *other], cx)

    def _cost(self, nodes: Iterable[ir.Node], cx: Context) -> str | None:
        """Why the contents of the branches must not run both."""
        computing = [node for node in nodes if node.op_type not in _FREE or node.domain != ""]
        for node in computing:
            if node.op_type in _HEAVY or not cannot_fail(node, cx):
                return f"{ir.label(node)} in a branch may fail, be costly or be random"
            shape = cx.static_shape(node.outputs[0])
            if shape is None or prod(shape) > self.elements:
                return f"{ir.label(node)} in a branch may compute more than {self.elements} elements"
        return f"its branches compute more than {self.nodes} nodes" if len(computing) > self.nodes else None


def _unlike(one: ir.Value, other: ir.Value, cx: Context) -> str | None:
    """Why a Where can't choose between the two values."""
    dtype = cx.dtype(one)
    if dtype is None or dtype is not cx.dtype(other):
        return "its branches are not known to return tensors of one dtype"
    if dtype not in _CHOOSABLE:
        return f"onnxruntime may have no Where for {dtype.name.lower()}"
    if dtype.is_floating_point() and cx.options.numerics is Numerics.EXACT:
        return "Where may change the sign of a zero"
    if not cx.facts.shape_equal(one, other):
        return "its branches are not known to return one shape"
    return None
