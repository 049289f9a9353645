"""add-if-then-else: If → Where."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.control_flow.if_branches import Branches, branches_of
from graphopt.control_flow.speculation import cannot_fail
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Operators that are too expensive to evaluate speculatively.
_HEAVY = frozenset({"Gemm", "MatMul"})
#: Operators without cost.
_FREE = frozenset({"Constant", "Identity"})
#: Types for which onnxruntime has a Where on every device.
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
    """Replace each If that only selects between two tensors by a Where (if-conversion).

    Where evaluates both branches, so they may contain only constants, Identities and a few cheap operators
    that cannot fail, on small tensors. Their results must have the same dtype and provably the same shape.
    onnxruntime's Where may change the sign of a zero; with exact numerics, floating-point tensors keep their
    If.

    Attributes:
        nodes: maximum number of operators in both branches together, except Constant and Identity.
        elements: maximum number of elements that each operator may compute.
    """

    name: ClassVar[str] = "add-if-then-else"
    operators: ClassVar[frozenset[str]] = frozenset({"If"})
    nodes: int = 4
    elements: int = 4096

    def run(self, model: ir.Model, cx: Context) -> None:
        """Replace each If, inner ones first."""
        for graph in reversed(cx.graphs):
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
        results = [cx.edit.inline_body(branch, node)[0] for branch in branches]
        where = cx.edit.make_node("Where", [node.inputs[0], *results], name=ir.label(node))
        cx.edit.insert_before(node, [where])
        cx.edit.note_origin([where], [node], self.name)
        cx.edit.replace(node.outputs[0], where.outputs[0])
        cx.edit.remove(node)
        cx.end_rewrite(action, node, [*moved, where])

    def _obstacle(self, node: ir.Node, branches: Branches, cx: Context) -> str | None:
        """The reason why ``node`` remains an If; ``None`` if a Where is equivalent."""
        if len(node.outputs) != 1:
            return "it has more than one output"
        if cx.version(node) < 9:
            return "its opset has no Where"
        condition = node.inputs[0]
        if condition is None or cx.rank(condition) != 0:
            return "its condition is not known to be a scalar"
        then, other = branches
        return _type_obstacle(then.outputs[0], other.outputs[0], cx) or self._cost_obstacle(
            [*then, *other], cx
        )

    def _cost_obstacle(self, nodes: Iterable[ir.Node], cx: Context) -> str | None:
        """The reason why the branches must not both run."""
        computing = [node for node in nodes if node.op_type not in _FREE or node.domain != ""]
        for node in computing:
            if node.op_type in _HEAVY or not cannot_fail(node, cx):
                return f"{ir.label(node)} in a branch may fail, be costly or be random"
            shape = cx.static_shape(node.outputs[0])
            if shape is None or prod(shape) > self.elements:
                return f"{ir.label(node)} in a branch may compute more than {self.elements} elements"
        return f"its branches compute more than {self.nodes} nodes" if len(computing) > self.nodes else None


def _type_obstacle(one: ir.Value, other: ir.Value, cx: Context) -> str | None:
    """The reason why a Where can't select between the two values."""
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
