"""Bodies and functions of a model and of its result as models of their own, with values for their inputs.

A body of an If runs with the values that it captures, also if the If does not run it. A body of a Loop or
Scan runs as in the first iteration, and a function as in its first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.instrument.lineage import Lineage, NodeLineage
from graphopt.verification.model_parts import Region, types_of
from graphopt.verification.session_memory import Weights

Values = Mapping[str, Any]


@dataclass(frozen=True)
class GraphPair:
    """A graph of the original and its counterpart in the result, as models.

    Attributes:
        original, result: the models.
        before, after: values of the original and of the result, on two sets of inputs.
        scope: the name of the function that contains the graphs; empty outside of functions.
    """

    original: ir.Model
    result: ir.Model
    before: Sequence[Values]
    after: Sequence[Values]
    scope: str = ""

    @property
    def nodes(self) -> dict[str, ir.Node]:
        """The nodes of the original by their names in its lineage."""
        found = {ir.label(node): node for node in self.original.graph}
        return found | {f"{self.scope}/{name}": node for name, node in found.items() if self.scope}

    def lineage_of(self, node: ir.Node, lineage: Lineage) -> NodeLineage | None:
        """The lineage of a node of the result."""
        name = ir.label(node)
        return lineage.nodes.get(f"{self.scope}/{name}") or lineage.nodes.get(name)


def nested_pairs(pair: GraphPair, lineage: Lineage) -> Iterator[tuple[ir.Graph, GraphPair | None]]:
    """The bodies and called functions of ``pair.result``, without those nested in them.

    ``before`` and ``after`` are the values of their inputs. The pair is ``None`` if the original has no
    counterpart, or an input has no value.
    """
    nodes = pair.nodes
    done: dict[tuple[str, str, str], None] = {}
    for node in pair.result.graph:
        known = pair.lineage_of(node, lineage)
        names = (ir.label(node),) if known is None else known.originals
        twins = [nodes[name] for name in names if name in nodes and nodes[name].op_type == node.op_type]
        twin = twins[0] if len(twins) == 1 else None
        for name, attribute in node.attributes.items():
            if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
                other = None if twin is None else twin.attributes.get(name)
                graph = attribute.as_graph()
                if twin is None or other is None:
                    yield graph, None
                else:
                    yield graph, _pair(pair, twin, other.as_graph(), node, graph)
        key = node.op_identifier()
        function = pair.result.functions.get(key)
        if function is not None and key not in done:
            done[key] = None
            same = pair.original.functions.get(key)
            if twin is None or same is None:
                yield function.graph, None
            else:
                called = _pair(pair, twin, same.graph, node, function.graph)
                yield function.graph, called and replace(called, scope=function.name)


def _pair(
    pair: GraphPair, twin: ir.Node, body: ir.Graph, node: ir.Node, new_body: ir.Graph
) -> GraphPair | None:
    before = [_inputs(twin, body, values) for values in pair.before]
    after = [_inputs(node, new_body, values) for values in pair.after]
    found = [values for values in (*before, *after) if values is not None]
    if len(found) < 4:
        return None
    models = [
        Region(model, tuple(graph), tuple(graph.outputs), Weights.of(())).to_model(types_of(values))
        for model, graph, values in ((pair.original, body, found[0]), (pair.result, new_body, found[2]))
    ]
    return GraphPair(models[0], models[1], found[:2], found[2:], pair.scope)


def _inputs(node: ir.Node, body: ir.Graph, values: Values) -> dict[str, Any] | None:
    """The values of the inputs of ``body``, and of those that it captures; ``None`` if one is unknown."""

    def value_of(value: ir.Value) -> Any:
        constant = ir.constant_of(value)
        return values.get(value.name or "") if constant is None else constant.numpy()

    operands = [None if value is None else value_of(value) for value in node.inputs]
    if node.op_type == "Loop":
        operands = [np.array(0, np.int64), np.array(True), *operands[2:]]
    elif node.op_type == "Scan":
        others = ("scan_input_axes", "scan_input_directions")
        if any(any(node.attributes[name].as_ints()) for name in others if name in node.attributes):
            return None
        count = node.attributes["num_scan_inputs"].as_int()
        first = [None if one is None else one[0] for one in operands[-count:]]
        operands = [*operands[:-count], *first]
    formal = dict(zip(body.inputs, operands, strict=False))
    region = Region(ir.Model(body, ir_version=10), tuple(body), tuple(body.outputs), Weights.of(()))
    read = region.graph_inputs()
    found = {value.name or "": formal[value] if value in formal else value_of(value) for value in read}
    return None if any(one is None for one in found.values()) else found
