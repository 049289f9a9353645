"""Structural validation: invariants of every model, independent of the semantics of its operators.

ONNX IR, sections Graphs, Nodes, Names Within a Graph, Functions: static single assignment, definitions that
precede and dominate uses, typed inputs, contents that fit their types, references only to attributes that the
function declares, no recursion, every domain imported. Bodies must return copies where onnxruntime requires
these (:mod:`graphopt.ir.body_outputs`). onnx-ir's links (uses, producers, graphs of nodes) must also be
consistent. Validation takes time linear in the size of the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.errors import InvalidModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.body_outputs import outputs_to_copy
from graphopt.ir.constants import FUNCTIONS, LOOSE_REFERENCES
from graphopt.ir.nested_graphs import graphs_of, in_order, walk_nodes
from graphopt.ir.opaque_parts import opaque_type
from graphopt.ir.printer import print_neighbourhood
from graphopt.ir.provenance import label
from graphopt.ir.topological_order import cycle_of, find_cycle
from graphopt.ir.weights import size_fault


class Fault(Exception):
    """A violated invariant.

    Attributes:
        sentence: a description.
        node: the node at fault, if any.
    """

    def __init__(self, sentence: str, node: onnx_ir.Node | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.node = node


def validate(model: onnx_ir.Model) -> None:
    """Check the structure of ``model``.

    Raises:
        InvalidModel: an invariant is violated; the message describes it, and prints the node at fault with
            the producers of its inputs.
    """
    fault = find_fault(model)
    if fault is not None:
        where = "" if fault.node is None else "\n" + print_neighbourhood(fault.node)
        raise InvalidModel(fault.sentence + where) from fault


def check_model(model: onnx_ir.Model) -> None:
    """Like :func:`validate`, with a message of one line, for models of users."""
    fault = find_fault(model)
    if fault is not None:
        raise InvalidModel(fault.sentence)


def find_fault(model: onnx_ir.Model) -> Fault | None:
    """The first violated invariant, or ``None``."""
    try:
        _check_functions(model)
        reads: dict[onnx_ir.Value, int] = {}
        owners: dict[onnx_ir.Value, onnx_ir.Graph] = {}
        _Root(model, model.graph, None, reads, owners).check()
        for function in model.functions.values():
            _Root(model, function.graph, function, reads, owners).check()
        _check_uses(model, reads, owners)
    except Fault as fault:
        return fault
    return None


class _Root:
    """Validation of the main graph or a function, including all bodies."""

    def __init__(
        self,
        model: onnx_ir.Model,
        graph: onnx_ir.Graph,
        function: onnx_ir.Function | None,
        reads: dict[onnx_ir.Value, int],
        owners: dict[onnx_ir.Value, onnx_ir.Graph],
    ) -> None:
        self._functions = model.functions
        self._domains_of_functions = frozenset(domain for domain, _, _ in model.functions)
        self._loose_references = model.graph.meta.get(LOOSE_REFERENCES, False)
        self._known = model.graph.meta.get(FUNCTIONS, frozenset())
        self._graph = graph
        self._function = function
        self._reads = reads
        self._owners = owners
        #: The graphs that contain the current node, with the names defined in each so far.
        self._open: dict[onnx_ir.Graph, list[str]] = {}
        self._visible: set[str] = set()
        #: Bodies of vendor operators, whose names may have a meaning.
        self._may_shadow: set[onnx_ir.Graph] = set()
        self._node_names: set[tuple[onnx_ir.Graph, str]] = set()
        self._domains: dict[str, onnx_ir.Node] = {}

    def check(self) -> None:
        """Raise :class:`Fault` if an invariant is violated."""
        for step, graph, node in in_order(self._graph):
            if step == "enter":
                self._enter(graph, node)
            elif step == "leave":
                self._leave(graph, node)
            elif node is not None:
                if step == "read":
                    self._check_node(node, graph)
                else:
                    self._define(node.outputs, graph, node)
        self._check_domains()

    def _enter(self, graph: onnx_ir.Graph, holder: onnx_ir.Node | None) -> None:
        if graph in self._open:
            raise Fault(f"graph {graph.name!r} is nested in itself")
        self._open[graph] = []
        if holder is not None and holder.domain != "":
            self._may_shadow.add(graph)
        self._define(graph.inputs, graph)
        if graph.initializers:
            inputs = frozenset(graph.inputs)
            self._define((value for value in graph.initializers.values() if value not in inputs), graph)
        for name, value in graph.initializers.items():
            if name != value.name:
                raise Fault(f"initializer {value.name!r} has the key {name!r}")
            if value.const_value is None:
                raise Fault(f"initializer {name!r} has no contents")
            fault = size_fault(value.const_value)
            if fault:
                raise Fault(f"initializer {name!r} {fault}")
        if graph is self._graph and self._function is None:
            for value in graph.inputs:
                if value.type is None and not value.is_initializer() and opaque_type(value) is None:
                    raise Fault(f"input {value.name!r} has no type")

    def _leave(self, graph: onnx_ir.Graph, holder: onnx_ir.Node | None) -> None:
        for value in graph.outputs:
            if self._owners.get(value) is not graph:
                raise Fault(
                    f"output {value.name!r} of graph {graph.name!r} {self._why_unreadable(value, None)}"
                )
        if holder is not None and holder.domain == "":
            for index in outputs_to_copy(holder.op_type, graph.inputs, graph.outputs):
                value = graph.outputs[index]
                if value.type is None or isinstance(value.type, onnx_ir.TensorType):
                    raise Fault(f"graph {graph.name!r} returns {value.name!r} without a copy", holder)
        self._visible.difference_update(self._open.pop(graph))

    def _define(
        self, values: Iterable[onnx_ir.Value], graph: onnx_ir.Graph, node: onnx_ir.Node | None = None
    ) -> None:
        for value in values:
            if value.producer() is not node:
                raise Fault(f"value {value.name!r} has an inconsistent producer", node)
            self._owners[value] = graph
            name = value.name
            if name:
                if name not in self._visible:
                    self._visible.add(name)
                    self._open[graph].append(name)
                elif graph not in self._may_shadow or name in self._open[graph]:
                    raise Fault(f"{name!r} is defined twice", node)
            elif node is None or value.uses() or value.is_graph_output():
                raise Fault(
                    "an input or initializer has no name" if node is None else "a value has no name", node
                )

    def _check_node(self, node: onnx_ir.Node, graph: onnx_ir.Graph) -> None:
        if node.graph is not graph:
            raise Fault(f"{label(node)!r} has an inconsistent graph", node)
        owners, reads = self._owners, self._reads
        for value in node.inputs:
            if value is not None:
                reads[value] = reads.get(value, 0) + 1
                if owners.get(value) not in self._open:
                    raise Fault(
                        f"{label(node)!r} reads {value.name!r}, which {self._why_unreadable(value, node)}",
                        node,
                    )
        if node.name:
            if (graph, node.name) in self._node_names:
                raise Fault(f"two nodes have the name {node.name!r}", node)
            self._node_names.add((graph, node.name))
        if node.attributes:
            self._check_attributes(node)
        self._domains.setdefault(node.domain, node)
        if node.overload or self._known:
            callee = node.op_identifier()
            if callee not in self._functions and (node.overload or callee in self._known):
                raise Fault(f"{label(node)!r} calls function {node.op_type}, which does not exist", node)

    def _check_attributes(self, node: onnx_ir.Node) -> None:
        for attribute in node.attributes.values():
            if attribute.is_ref():
                if self._function is None:
                    if self._loose_references:
                        continue
                    raise Fault(
                        f"{label(node)!r} refers to a function's attribute, but is in no function", node
                    )
                if attribute.ref_attr_name not in self._function.attributes:
                    raise Fault(
                        f"{label(node)!r} refers to attribute {attribute.ref_attr_name!r}, which function"
                        f" {self._function.name} does not declare",
                        node,
                    )
            elif attribute.type == onnx_ir.AttributeType.UNDEFINED:
                raise Fault(f"attribute {attribute.name!r} of {label(node)!r} has no type", node)
            elif attribute.type == onnx_ir.AttributeType.TENSOR:
                fault = size_fault(attribute.value)
                if fault:
                    raise Fault(f"attribute {attribute.name!r} of {label(node)!r} {fault}", node)

    def _why_unreadable(self, value: onnx_ir.Value, node: onnx_ir.Node | None) -> str:
        producer = value.producer()
        if producer is None:
            if value.is_graph_input() or value.is_initializer():
                return "belongs to another graph"
            return "has no definition"
        if producer.graph is None:
            return "was defined by a node that was removed"
        if producer.graph not in self._open:
            return "belongs to another graph"
        if node is None:
            return "belongs to an outer graph"
        if producer is node or find_cycle(self._graph):
            return "depends on it in a cycle"
        return "is defined later"

    def _check_domains(self) -> None:
        imports = self._graph.opset_imports
        for domain, node in self._domains.items():
            if domain in imports or (domain == "" and "ai.onnx" in imports):
                continue
            # a library of custom operators may register the domain; functions must import every domain
            if self._function is None and domain != "" and domain not in self._domains_of_functions:
                continue
            where = "the model" if self._function is None else f"function {self._function.name}"
            name = domain or "ai.onnx"
            raise Fault(f"{label(node)!r} is of domain {name!r}, which {where} does not import", node)


def _check_uses(
    model: onnx_ir.Model, reads: dict[onnx_ir.Value, int], owners: dict[onnx_ir.Value, onnx_ir.Graph]
) -> None:
    """Check that the uses of each value are exactly its readers."""
    for value in owners:
        uses = value.uses()
        if len(uses) == reads.get(value, 0):
            continue
        nodes = {node for graph in graphs_of(model) for node in graph}
        for node, _ in uses:
            if node not in nodes:
                raise Fault(
                    f"{value.name!r} is read by {label(node)!r}, which is in no graph of the model", node
                )
        raise Fault(f"the uses of {value.name!r} disagree with the nodes that read it", value.producer())


def _check_functions(model: onnx_ir.Model) -> None:
    """Check that functions have consistent keys and are not recursive."""
    calls: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for key, function in model.functions.items():
        if key != function.identifier():
            raise Fault(f"function {function.name!r} has the key {key}")
        callees = (node.op_identifier() for node in walk_nodes(function.graph))
        calls[key] = list(dict.fromkeys(callee for callee in callees if callee in model.functions))
    cycle = cycle_of(calls)
    if cycle:
        names = " → ".join(name for _, name, _ in [*cycle, cycle[0]])
        raise Fault(f"recursive functions: {names}")
