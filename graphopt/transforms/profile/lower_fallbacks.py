"""lower-fallbacks: replace the checks of guarded groups by standard operators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.errors import InvalidModel
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.profile import Guard, ValueProfile
from graphopt.profile.guard_nodes import GuardNodes


@dataclass(frozen=True)
class LowerFallbacks(Pass):
    """Replace ``TypeCheck(x…)`` by nodes that compute it, so that onnxruntime chooses the version of a group.

    The nodes compare the sizes in question at the site of the check, also in bodies and functions. A check
    that always or never holds becomes a constant.

    The counterpart in PyTorch's JIT is ``replaceFallbackGraphWithFallbackFunction``, which makes the general
    version a function with a separate executor.
    """

    name: ClassVar[str] = "lower-fallbacks"
    does: ClassVar[str] = "lowered"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Lower all checks."""
        for graph in ir.graphs_of(model):
            for node in list(graph):
                if graphopt_operators.is_type_check(node):
                    self._lower(node, graph, cx)

    def _lower(self, node: ir.Node, graph: ir.Graph, cx: Context) -> None:
        inputs = [value for value in node.inputs if value is not None]
        profiles = assumptions_of(node)
        if profiles is None or len(profiles) != len(node.inputs) or len(inputs) != len(profiles):
            cx.refuse(Refusal(self.name, ir.label(node), "its assumptions are malformed"))
            return
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return
        before = list(graph)
        names = [str(number) for number in range(len(inputs))]
        guard = Guard(dict(zip(names, profiles, strict=True)))
        condition = _condition(guard, dict(zip(names, inputs, strict=True)), graph, cx)
        made = list(graph)[len(before) :]
        place = before.index(node)
        cx.edit.reorder(graph, [*before[:place], *made, *before[place:]])
        condition.type, condition.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        if ir.constant_of(condition) is None:
            cx.edit.note(condition, graphopt_operators.CHECKED, "true")
        cx.edit.note_origin(made, [node], self.name)
        cx.edit.replace(node.outputs[0], condition)
        cx.edit.remove(node)
        cx.end_rewrite(action, node, made)


def assumptions_of(node: ir.Node) -> list[ValueProfile] | None:
    """The assumptions of the check ``node``, one for each input; ``None`` if they are malformed."""
    attribute = node.attributes.get(graphopt_operators.SEEN)
    if attribute is None or attribute.is_ref() or attribute.type is not ir.AttributeType.STRING:
        return None
    try:
        data = json.loads(attribute.as_string())
        return [ValueProfile.from_dict(item) for item in data] if isinstance(data, list) else None
    except (ValueError, InvalidModel):
        return None


def _condition(guard: Guard, values: Mapping[str, ir.Value], graph: ir.Graph, cx: Context) -> ir.Value:
    """A scalar, computed by nodes at the end of ``graph``: whether ``guard`` holds for ``values``."""
    shapes: dict[str, Sequence[int | None] | None] = {}
    for name, value in values.items():
        shape = cx.shape(value)
        shapes[name] = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
    nodes = GuardNodes(cx.edit, graph, values, shapes)
    nodes.prepare([guard])
    found = nodes.condition(guard, graph)
    return cx.edit.constant(graph, np.array(True), "guard_always") if found is None else found
