"""Operations and bytes of kernels, by the shapes of a run in onnxruntime's profile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt import ir
from graphopt.analysis.cost import NodeCost, cost_of, has_formula
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.resource_budget import Budget

#: Bytes per element, by the name of the type in a profile.
ELEMENT_BYTES = {
    "float": 4, "double": 8, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4,
    "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
#: Time limit for the shapes in the body of a group, in seconds.
_TIME_LIMIT = 5.0

#: Type and dims of a tensor, as in a profile.
TypedShape = tuple[str, Sequence[int]]


@dataclass(frozen=True)
class KernelCost:
    """The cost of one execution, or of several.

    Attributes:
        flops: operations; ``None`` if unknown.
        bytes: size of inputs and outputs; ``None`` if unknown.
        type: element type of the first input, by its name in a profile.
    """

    flops: int | None
    bytes: int | None
    type: str = ""

    @classmethod
    def of(
        cls,
        node: ir.Node | None,
        event: Mapping[str, Any],
        groups: Mapping[str, ir.Function],
    ) -> KernelCost:
        """The cost of one execution.

        Args:
            node: the node that onnxruntime ran, if known.
            event: the event of the profile with the shapes of its inputs and outputs.
            groups: functions that run as one kernel, by name; their operations are those of their nodes.
        """
        inputs, outputs = (
            [next(iter(one.items())) for one in event["args"].get(key, ()) if one]
            for key in ("input_type_shape", "output_type_shape")
        )
        if node is not None:
            inputs = _with_packed_constants(node, inputs)
        known = all(kind in ELEMENT_BYTES for kind, _ in [*inputs, *outputs])
        size = (
            sum(math.prod(dims) * ELEMENT_BYTES[kind] for kind, dims in [*inputs, *outputs])
            if known
            else None
        )
        kind = next((kind for kind, _ in [*inputs, *outputs]), "")
        return cls(_operations(node, inputs, outputs, groups), size, kind)

    @classmethod
    def sum_of(cls, costs: Sequence[KernelCost]) -> KernelCost:
        """The sum of the costs of all executions; the element type is that of the first."""
        flops, sizes = [cost.flops for cost in costs], [cost.bytes for cost in costs]
        return cls(
            None if None in flops else sum(filter(None, flops)),
            None if None in sizes else sum(filter(None, sizes)),
            costs[0].type,
        )


def _operations(
    node: ir.Node | None,
    inputs: Sequence[TypedShape],
    outputs: Sequence[TypedShape],
    groups: Mapping[str, ir.Function],
) -> int | None:
    if node is None:
        return None
    if node.domain == NATIVE_DOMAIN:
        function = groups.get(node.op_type)
        return None if function is None else group_operations(function, inputs)
    if not has_formula(node):
        return None
    shapes = _RunShapes(node, inputs, outputs)
    cost: NodeCost | None = cost_of(node, shapes) if shapes.is_complete else None
    return cost.flops if cost is not None and isinstance(cost.flops, int) else None


def group_operations(function: ir.Function, inputs: Sequence[TypedShape]) -> int | None:
    """The operations of all nodes of ``function`` for inputs of these shapes; ``None`` if unknown."""
    graph = ir.clone_function(function).graph
    if len(graph.inputs) != len(inputs):
        return None
    model = ir.Model(graph, ir_version=10)
    scopes = ir.Scopes(model)
    facts = ShapeFacts(
        model, constant=ir.constant_of, version=scopes.version, budget=Budget(seconds=_TIME_LIMIT)
    )
    for value, (kind, dims) in zip(graph.inputs, inputs, strict=True):
        dtype = ir.DataType.__members__.get(kind.upper())
        if dtype is None:
            return None
        facts.set(value, Fact(dtype, tuple(dims)))
    total = 0
    for node in graph:
        cost = cost_of(node, facts) if has_formula(node) else None
        if cost is None or not isinstance(cost.flops, int):
            return None
        total += cost.flops
    return total


def _with_packed_constants(node: ir.Node, inputs: Sequence[TypedShape]) -> list[TypedShape]:
    """``inputs`` with the constants that onnxruntime packed at creation, which the profile lacks.

    Constants have their shapes in the graph; the remaining inputs have them in the profile, in order.
    """
    named = [value for value in node.inputs if value is not None and value.name]
    if len(named) == len(inputs):
        return list(inputs)
    rest: list[TypedShape] = list(inputs)
    found: list[TypedShape] = []
    for value in named:
        constant = ir.constant_of(value)
        if constant is not None:
            own = constant.dtype.name.lower(), list(constant.shape.numpy())
            if rest and (rest[0][0], list(rest[0][1])) == own:
                del rest[0]
            found.append(own)
        elif rest:
            found.append(rest.pop(0))
    return found if not rest and len(found) == len(named) else list(inputs)


class _RunShapes:
    """Shapes of the values of one node in one run."""

    def __init__(self, node: ir.Node, inputs: Sequence[TypedShape], outputs: Sequence[TypedShape]) -> None:
        self._found: dict[ir.Value, TypedShape] = {}
        self.is_complete = True
        for values, shapes in ((node.inputs, inputs), (node.outputs, outputs)):
            named = [value for value in values if value is not None and value.name]
            # absent outputs and inputs may be missing in the profile: then positions are unknown
            self.is_complete &= len(named) == len(shapes)
            self._found |= dict(zip(named, shapes, strict=False))

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        found = self._found.get(value)
        return None if found is None else tuple(found[1])

    def nbytes(self, value: ir.Value) -> int | None:
        found = self._found.get(value)
        return None if found is None else math.prod(found[1]) * ELEMENT_BYTES.get(found[0], 1)
