"""lower-fallbacks: replace the checks of guarded groups by standard operators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np

from graphopt import ir
from graphopt.context import Action, Context, Refusal
from graphopt.errors import InvalidModel
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.profile import Guard, ValueProfile
from graphopt.profile.guard_nodes import GuardNodes
from graphopt.util.lazy_dataclass import dataclass


class _Lowered(NamedTuple):
    """A lowered check: its condition, and the nodes at the end of the graph that compute the condition."""

    action: Action
    condition: ir.Value
    nodes: list[ir.Node]


@dataclass(frozen=True)
class LowerFallbacks(Pass):
    """Replace ``TypeCheck(x…)`` by nodes that compute it, so that onnxruntime chooses the version of a group.

    The nodes compare the assumed sizes at the site of the check, also in bodies and functions. A check that
    always or never holds becomes a constant.

    The counterpart in PyTorch's JIT is ``replaceFallbackGraphWithFallbackFunction``, which makes the general
    version a function with a separate executor.
    """

    name: ClassVar[str] = "lower-fallbacks"
    does: ClassVar[str] = "lowered"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Lower all checks, graph by graph."""
        for graph in ir.graphs_of(model):
            nodes = list(graph)
            lowered = {}
            for node in nodes:
                found = self._lower(node, graph, cx) if graphopt_operators.is_type_check(node) else None
                if found is not None:
                    lowered[node] = found
            if not lowered:
                continue
            order: list[ir.Node] = []
            for node in nodes:
                order += [*(lowered[node].nodes if node in lowered else ()), node]
            cx.edit.reorder(graph, order)
            for node, found in lowered.items():
                cx.edit.replace(node.outputs[0], found.condition)
                cx.edit.remove(node)
                cx.end_rewrite(found.action, node, found.nodes)

    def _lower(self, node: ir.Node, graph: ir.Graph, cx: Context) -> _Lowered | None:
        """Append nodes to ``graph`` that compute the check ``node``; ``None`` if that is not possible."""
        inputs = [value for value in node.inputs if value is not None]
        profiles = assumptions_of(node)
        if profiles is None or len(profiles) != len(node.inputs) or len(inputs) != len(profiles):
            cx.refuse(Refusal(self.name, ir.label(node), "its assumptions are malformed"))
            return None
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return None
        count = len(graph)
        names = [str(number) for number in range(len(inputs))]
        guard = Guard(dict(zip(names, profiles, strict=True)))
        condition = _condition(guard, dict(zip(names, inputs, strict=True)), graph, cx)
        condition.type, condition.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        if ir.constant_of(condition) is None:
            text = node.outputs[0].metadata_props.get(graphopt_operators.CHECKED, "{}")
            cx.edit.note(condition, graphopt_operators.CHECKED, text)
        new = list(islice(reversed(graph), len(graph) - count))[::-1]
        cx.edit.note_origin(new, [node], self.name)
        return _Lowered(action, condition, new)


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
