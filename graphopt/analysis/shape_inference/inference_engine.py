"""Infer facts on demand, node by node, within one scope.

A scope is a set of graphs whose facts are inferred together: the whole model, or the body of a function for
one particular call. Scopes share an
:class:`graphopt.analysis.shape_inference.inference_state.InferenceState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.fills import fill_of
from graphopt.analysis.shape_inference.inference_state import InferenceState
from graphopt.analysis.shape_inference.node_facts import NodeFacts, UnknownAttribute
from graphopt.analysis.shape_inference.onnx_fallback import infer_with_onnx, with_contrib_types
from graphopt.analysis.shape_inference.value_facts import (
    ABSENT,
    UNKNOWN,
    Fact,
    ShapeTuple,
    constant_fact,
    joined,
)
from graphopt.analysis.symbolic import Dim, SymDim
from graphopt.ops import traits

#: Exceptions that a rule may raise for a node that violates the operator's specification.
_MALFORMED = (IndexError, KeyError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)

_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
#: Maximum depth of nested calls.
_CALL_DEPTH = 24


class Inference:
    """The facts of one scope.

    Attributes:
        facts: the facts inferred so far.
        attributes: the attributes of the call, in the body of a called function; otherwise ``None``.
    """

    def __init__(
        self, state: InferenceState, attributes: Mapping[str, ir.Attr] | None = None, depth: int = 0
    ) -> None:
        self.state = state
        self.attributes = attributes
        self.depth = depth
        self.facts: dict[ir.Value, Fact] = {}
        self.tensors: dict[ir.Value, ir.TensorProtocol] = {}
        self.version = state.version
        self.fresh = state.fresh
        self._trail: list[ir.Value] | None = None
        self._inside: set[ir.Node] = set()
        self._callers = 0  # depth of the search through callers

    # services for rules

    def constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        """The tensor that ``value`` always equals in this scope, or ``None``."""
        tensor = self.tensors.get(value)
        return self.state.constant(value) if tensor is None else tensor

    def fill(self, value: ir.Value) -> np.generic | None:
        """The common value of all elements of ``value``, if known."""
        tensor = self.constant(value)
        return self.infer(value).fill if tensor is None else ir.fill_of_tensor(tensor)

    def resolve(self, attribute: ir.Attr) -> ir.Attr | None:
        """The attribute of this call that ``attribute`` refers to. Raises UnknownAttribute outside calls."""
        if self.attributes is None:
            raise UnknownAttribute(attribute.name)
        return self.attributes.get(attribute.ref_attr_name or "")

    def infer(self, value: ir.Value) -> Fact:
        """The facts of ``value``, inferred now if necessary."""
        if value in self.facts:
            return self.known(value)
        with self.state.budget:
            return self._compute(value)

    def known(self, value: ir.Value) -> Fact:
        """The facts of a value that were inferred earlier."""
        fact = self.facts[value]
        fresh = self.state.refreshed(fact)
        if fresh is not fact:
            self.facts[value] = fresh
        return fresh

    def equate(self, node: ir.Node, vague: Dim, dim: Dim) -> None:
        """Record an equality that ``node`` requires, if every run executes ``node``."""
        if self.depth == 0 and self._trail is None and node.graph is self.state.model.graph:
            self.state.equate(vague, dim)

    @property
    def newest_symbol(self) -> int:
        """The number of the newest fresh symbol."""
        return self.state.newest_symbol

    def guard_symbol(self, name: str) -> SymDim:
        """The symbol ``name`` of guards."""
        return self.state.guard_symbol(name)

    def resolved(self, dim: Dim) -> Dim:
        """``dim`` after substitution of the equalities found so far."""
        return self.state.resolved(dim)

    def set(self, value: ir.Value, fact: Fact) -> None:
        """Record the facts of ``value``."""
        if self._trail is not None:
            self._trail.append(value)
        self.facts[value] = fact

    def assume(self, premises: Mapping[ir.Value, Fact], wanted: Iterable[ir.Value]) -> Assumption:
        """Infer ``wanted`` from ``premises``; the result can be retracted."""
        outer, self._trail = self._trail, []
        try:
            for value, fact in premises.items():
                self.set(value, fact)
            results = [self.infer(value) for value in wanted]
            return Assumption(self, results, self._trail)
        finally:
            if outer is not None:
                outer.extend(self._trail)
            self._trail = outer

    def invalidate(self, graphs: Iterable[ir.Graph]) -> None:
        """Discard the facts of all values of ``graphs``, to infer them again on demand."""
        for graph in graphs:
            for value in (*graph.inputs, *graph.initializers.values()):
                self.facts.pop(value, None)
            for node in graph:
                for value in node.outputs:
                    self.facts.pop(value, None)

    # traversal

    def infer_graphs(self, graphs: Iterable[ir.Graph]) -> None:
        """Infer the facts of every value of ``graphs`` and of their bodies."""
        stack = list(graphs)[::-1]
        with self.state.budget:
            while stack:
                stack.extend(reversed(self._infer_graph(stack.pop())))

    def _infer_graph(self, graph: ir.Graph) -> list[ir.Graph]:
        """Infer the facts of every value of ``graph``; returns the bodies of its nodes."""
        facts = self.facts
        found: list[ir.Graph] = []
        for value in (*graph.inputs, *graph.initializers.values()):
            if value not in facts:
                self._compute(value)
        for node in graph:
            attributes = node.attributes.data
            if attributes and any(attribute.type in _GRAPH_TYPES for attribute in attributes.values()):
                found += ir.bodies(node)
            outputs = node.outputs
            if not outputs or outputs[0] in facts:
                continue
            if node.op_type in traits.CONTROL_FLOW:
                self._compute(outputs[0])
                continue
            for operand in node.inputs:
                if operand is not None and operand not in facts:
                    self._compute(operand)
            self._infer_node(node)
        return found

    def _compute(self, wanted: ir.Value) -> Fact:
        """Infer ``wanted`` after the values that it depends on, by iteration instead of recursion."""
        facts = self.facts
        stack = [wanted]
        entered: set[ir.Node] = set()
        while stack:
            value = stack[-1]
            if value in facts:
                stack.pop()
                continue
            node = self._definer(value)
            if node is None:
                self.set(value, self._source(value))
                continue
            if node is not value.producer() and node.outputs and node.outputs[0] in facts:
                self.set(value, UNKNOWN)  # a body's input without facts from its node
                continue
            missing = [need for need in self._operands(node) if need not in facts]
            if not missing:
                self._infer_node(node)
            elif node in entered:  # the graph is cyclic
                for output in (value, *node.outputs):
                    self.set(output, UNKNOWN)
            else:
                entered.add(node)
                stack.extend(reversed(missing))
        return self.known(wanted)

    def _definer(self, value: ir.Value) -> ir.Node | None:
        """The node that determines ``value``: its producer, or the node of a body with this input."""
        producer = value.producer()
        if producer is not None or not value.is_graph_input():
            return producer
        graph = value.graph
        if graph is None or graph is self.state.model.graph:
            return None
        return self.state.holder(graph)

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        """The values that must be inferred before ``node``: its inputs, and the captures of its bodies."""
        if node.op_type in traits.CONTROL_FLOW:
            return ir.reads(node)
        return [value for value in node.inputs if value is not None]

    def _source(self, value: ir.Value) -> Fact:
        """The facts of a value without a producer."""
        try:
            tensor = self.constant(value)
            if tensor is not None:
                fact = constant_fact(tensor)
                if fact.contents is not None:
                    ir.read_for_facts(value)
                return fact
        except _MALFORMED:
            return UNKNOWN
        if value.is_graph_input() and value.graph is self.state.model.graph:
            return self._declared_input(value)
        if value.is_graph_input() and value.graph is not None:
            return self._argument(value, value.graph)
        tensor = value.const_value
        if tensor is not None:  # an initializer whose contents may change
            return Fact(tensor.dtype, tuple(tensor.shape.numpy()))
        return UNKNOWN

    def _argument(self, value: ir.Value, graph: ir.Graph) -> Fact:
        """The facts of an input of a function that hold in all its calls."""
        found = self.state.calls(graph)
        if found is None or self._callers >= _CALL_DEPTH:
            return UNKNOWN
        function, calls = found
        index = function.inputs.index(value)
        self._callers += 1
        try:
            arguments = [call.inputs[index] if index < len(call.inputs) else None for call in calls]
            facts = [UNKNOWN if argument is None else self.infer(argument) for argument in arguments]
        finally:
            self._callers -= 1
        return joined(facts, self.fresh)

    def _declared_input(self, value: ir.Value) -> Fact:
        """The declared facts of an input of the model, which the runtime enforces."""
        declared = value.type
        if isinstance(declared, ir.SequenceType | ir.OptionalType):
            return declared_fact(declared)
        if not isinstance(declared, ir.TensorType):
            return UNKNOWN
        if value.shape is None:
            return Fact(declared.dtype)
        dims: list[Dim] = []
        for index, dim in enumerate(value.shape):
            if isinstance(dim, int) and dim > 0:
                dims.append(dim)
                continue
            name = None if isinstance(dim, int) else dim.value
            if name is None or name in ir.ANONYMOUS_DIMS:
                name = ir.unnamed_dim(value.name, index)
            dims.append(self.state.declared_symbol(name))
        return Fact(declared.dtype, tuple(dims))

    # one node

    def _infer_node(self, node: ir.Node) -> None:
        if self.state.budget.over:
            self.state.budget.unknown += 1
            for output in node.outputs:
                self.set(output, UNKNOWN)
            return
        inputs = NodeFacts(self, node)
        fill = None
        try:
            result = () if node in self._inside else self._apply(inputs)
            fill = fill_of(inputs)
        except UnknownAttribute:
            result = ()
        except _MALFORMED as error:
            self.state.failures.append((node, error))
            result = ()
        facts = (result,) if isinstance(result, Fact) else tuple(result or ())
        for index, output in enumerate(node.outputs):
            fact = facts[index] if index < len(facts) else UNKNOWN
            shape = fact.shape
            if shape is not None:
                for dim in shape:
                    if dim.__class__ is int and dim < 0:  # the node always fails
                        fact = Fact(fact.dtype, self._without_negatives(shape))
                        break
            if fill is not None:
                fact = fact.filled(fill)
            self.set(output, fact)

    def _apply(self, node: NodeFacts) -> Fact | Iterable[Fact] | None:
        if node.ir.op_type not in traits.CONTROL_FLOW:
            return self._facts_of_outputs(node)
        self._inside.add(node.ir)  # a malformed body may read the outputs of its own node
        try:
            return self._facts_of_outputs(node)
        finally:
            self._inside.discard(node.ir)

    def _facts_of_outputs(self, node: NodeFacts) -> Fact | Iterable[Fact] | None:
        """The facts of a node's outputs from a function's body, a shape rule, or onnx's inference."""
        domain, op_type = node.ir.domain, node.ir.op_type
        functions = self.state.model.functions
        # in these domains, onnxruntime may prefer its own operator to a function of the same name
        if functions and domain not in ir.RUNTIME_DOMAINS:
            function = functions.get((domain, op_type, node.ir.overload))
            if function is not None:
                return self._call(node, function)
        rule = self.state.rules.get((domain, op_type))
        result = None if rule is None else rule(node)
        if domain == ir.MICROSOFT:
            return with_contrib_types(node, result)
        return infer_with_onnx(node) if result is None else result

    def _call(self, node: NodeFacts, function: ir.Function) -> list[Fact]:
        """The facts of a call, inferred from the body of the function."""
        state = self.state
        state.calls_left -= len(function)
        if self.depth >= _CALL_DEPTH or state.calls_left < 0:
            return []
        attributes = {name: a for name, a in function.attributes.items() if a.value is not None}
        for name, attribute in node.ir.attributes.items():
            resolved = self.resolve(attribute) if attribute.is_ref() else attribute
            if resolved is not None:
                attributes[name] = resolved
        scope = Inference(state, attributes, self.depth + 1)
        for index, value in enumerate(function.inputs):
            scope.facts[value] = node.fact(index) if node.has(index) else ABSENT
            tensor = node.constant(index)
            if tensor is not None:
                scope.tensors[value] = tensor
        return [scope.infer(value) for value in function.outputs]

    def _without_negatives(self, shape: ShapeTuple) -> ShapeTuple:
        return tuple(self.fresh("dim") if isinstance(dim, int) and dim < 0 else dim for dim in shape)


class Assumption:
    """Facts inferred from premises that may later prove too strong."""

    def __init__(self, scope: Inference, results: list[Fact], trail: list[ir.Value]) -> None:
        self.results = results
        self._scope = scope
        self._trail = trail

    def retract(self) -> None:
        """Discard the premises and everything inferred from them."""
        for value in self._trail:
            self._scope.facts.pop(value, None)


def declared_fact(declared: ir.TypeProtocol) -> Fact:
    """The facts of a declared type without shapes: runtimes do not enforce the shapes of elements."""
    if isinstance(declared, ir.SequenceType | ir.OptionalType):
        return Fact(container=type(declared), element=declared_fact(declared.elem_type))
    return Fact(declared.dtype) if isinstance(declared, ir.TensorType) else UNKNOWN
