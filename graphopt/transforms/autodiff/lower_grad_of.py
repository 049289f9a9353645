"""lower-grad-of: replace gradient regions by standard operators."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.transforms.autodiff._zero_gradients import is_gradient_node, walk_gradients
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class LowerGradOf(Pass):
    """Replace the operators of ``graphopt.ad`` by standard ones.

    ``GradOf(dy…, x…) → body``, or zeros if all dy are zero. ``AutogradAdd(a, b) → Add(a, b)``, or the operand
    that is not zero. ``Zero(x) → ConstantOfShape(Shape(x))`` if a node reads it; otherwise it is removed,
    because no runtime implements Zero.
    """

    name: ClassVar[str] = "lower-grad-of"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Propagate zeros first, so that few tensors of zeros remain."""
        walk_gradients(model, cx, self.name, lower=True)
        for graph in ir.graphs_of(model):
            for node in list(reversed(graph)):
                if is_gradient_node(node, graphopt_operators.ZERO):
                    if ir.is_read(node.outputs[0]):
                        self._make(node, cx)
                    elif (action := cx.begin_rewrite(self.name, node)) is not None:
                        cx.edit.remove(node)
                        cx.end_rewrite(action, node, [])

    def _make(self, node: ir.Node, cx: Context) -> None:
        """Replace a Zero by a tensor of zeros."""
        graph, like = node.graph, node.inputs[0]
        dtype = None if like is None else cx.dtype(like)
        imports = {} if graph is None else cx.edit.scopes.imports(graph)
        old = ir.standard_version(imports) < 9
        if dtype is None or not dtype.is_floating_point() or old:
            reason = "the opset has no ConstantOfShape" if old else "the dtype of the gradient is unknown"
            cx.refuse(Refusal(self.name, ir.label(node), reason))
            return
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return
        shape = cx.edit.make_node("Shape", [like], name=ir.label(node))
        value = ir.tensor(np.zeros(1, dtype.numpy()), dtype)
        zeros = cx.edit.make_node("ConstantOfShape", shape.outputs, {"value": value}, name=ir.label(node))
        made = [shape, zeros]
        cx.edit.insert_before(node, made)
        cx.edit.note_origin(made, [node], self.name)
        cx.edit.replace(node.outputs[0], zeros.outputs[0])
        cx.edit.remove(node)
        cx.end_rewrite(action, node, made)
