"""Facts computed by need, node by node, over one scope.

A scope is a set of graphs whose facts are asked for together: the whole model, or the body of a
function for one particular call. What scopes share (symbols, ranges, counters) is in
:class:`graphopt.analysis.shape_inference.state.World`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference import fallback
from graphopt.analysis.shape_inference.facts import ABSENT, UNKNOWN, Fact, ShapeTuple, constant_fact, joined
from graphopt.analysis.shape_inference.fallback import with_vendor_types
from graphopt.analysis.shape_inference.fills import fill_of
from graphopt.analysis.shape_inference.node import NodeFacts, UnknownAttribute
from graphopt.analysis.shape_inference.state import World
from graphopt.analysis.symbolic import Dim

# What a rule may raise on a node that breaks the operator's specification.
_MALFORMED = (IndexError, KeyError, TypeError, ValueError, ArithmeticError, AttributeError, OSError)

_HAVE_BODIES = frozenset({"If", "Loop", "Scan"})
_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_CALL_DEPTH = 24


class Inference:
    """The facts of one scope.

    Attributes:
        facts: what has been computed so far.
        attributes: in the body of a called function, the attributes of the call; else None.
    """

    def __init__(self, world: World, attributes: Mapping[str, ir.Attr] | None = None, depth: int = 0) -> None:
        self.world = world
        self.attributes = attributes
        self.depth = depth
        self.facts: dict[ir.Value, Fact] = {}
        self.tensors: dict[ir.Value, ir.TensorProtocol] = {}
        self.version = world.version
        self.fresh = world.fresh
        self._trail: list[ir.Value] | None = None
        self._inside: set[ir.Node] = set()
        self._callers = 0  # how many calls up facts are being looked for

    # what rules ask for

    def constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        tensor = self.tensors.get(value)
        return self.world.constant(value) if tensor is None else tensor

    def fill(self, value: ir.Value) -> np.generic | None:
        """The number that every element of ``value`` is, if that is known."""
        tensor = self.constant(value)
        return self.need(value).fill if tensor is None else ir.fill_of_tensor(tensor)

    def resolve(self, attribute: ir.Attr) -> ir.Attr | None:
        """What a reference to an attribute of the enclosing function means in this call."""
        if self.attributes is None:
            raise UnknownAttribute(attribute.name)
        return self.attributes.get(attribute.ref_attr_name or "")

    def need(self, value: ir.Value) -> Fact:
        """The facts of ``value``, computed now if they are not known yet."""
        if value in self.facts:
            return self.known(value)
        with self.world.budget.spending():
            return self._compute(value)

    def known(self, value: ir.Value) -> Fact:
        """The facts of a value for which they have been computed."""
        fact = self.facts[value]
        fresh = self.world.refreshed(fact)
        if fresh is not fact:
            self.facts[value] = fresh
        return fresh

    def equate(self, node: ir.Node, vague: Dim, dim: Dim) -> None:
        """Learn an equality without which ``node`` fails, if ``node`` is part of every run."""
        if self.depth == 0 and self._trail is None and node.graph is self.world.model.graph:
            self.world.equate(vague, dim)

    def settle(self, value: ir.Value, fact: Fact) -> None:
        """Record the facts of ``value``."""
        if self._trail is not None:
            self._trail.append(value)
        self.facts[value] = fact

    def attempt(self, premises: Mapping[ir.Value, Fact], wanted: Iterable[ir.Value]) -> Attempt:
        """Infer ``wanted`` from ``premises`` in a way that can be taken back."""
        outer, self._trail = self._trail, []
        try:
            for value, fact in premises.items():
                self.settle(value, fact)
            results = [self.need(value) for value in wanted]
            return Attempt(self, results, self._trail)
        finally:
            if outer is not None:
                outer.extend(self._trail)
            self._trail = outer

    def forget(self, graphs: Iterable[ir.Graph]) -> None:
        """Compute the facts of all values of ``graphs`` anew when they are asked for."""
        for graph in graphs:
            for value in (*graph.inputs, *graph.initializers.values()):
                self.facts.pop(value, None)
            for node in graph:
                for value in node.outputs:
                    self.facts.pop(value, None)

    # the walk

    def infer_graphs(self, graphs: Iterable[ir.Graph]) -> None:
        """Compute the facts of every value of ``graphs`` and of the bodies within."""
        stack = list(graphs)[::-1]
        with self.world.budget.spending():
            while stack:
                stack.extend(reversed(self._infer_graph(stack.pop())))

    def _infer_graph(self, graph: ir.Graph) -> list[ir.Graph]:
        """Compute the facts of every value of ``graph``; gives back the bodies that its nodes hold."""
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
            if node.op_type in _HAVE_BODIES:
                self._compute(outputs[0])
                continue
            for operand in node.inputs:
                if operand is not None and operand not in facts:
                    self._compute(operand)
            self._infer(node)
        return found

    def _compute(self, wanted: ir.Value) -> Fact:
        """Work back from ``wanted`` to what is known, and forward again. No recursion over nodes."""
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
                self.settle(value, self._source(value))
                continue
            if node is not value.producer() and node.outputs and node.outputs[0] in facts:
                self.settle(value, UNKNOWN)  # a body's input that its node says nothing about
                continue
            missing = [need for need in self._operands(node) if need not in facts]
            if not missing:
                self._infer(node)
            elif node in entered:  # the graph is cyclic
                for output in (value, *node.outputs):
                    self.settle(output, UNKNOWN)
            else:
                entered.add(node)
                stack.extend(reversed(missing))
        return self.known(wanted)

    def _definer(self, value: ir.Value) -> ir.Node | None:
        """The node that tells the facts of ``value``: its producer, or the node whose body it enters."""
        producer = value.producer()
        if producer is not None or not value.is_graph_input():
            return producer
        graph = value.graph
        if graph is None or graph is self.world.model.graph:
            return None
        return self.world.holder(graph)

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        """The values that must be known before ``node``: its inputs, and what its bodies capture."""
        if node.op_type in _HAVE_BODIES:
            return ir.reads(node)
        return [value for value in node.inputs if value is not None]

    def _source(self, value: ir.Value) -> Fact:
        """The facts of a value that no node produces."""
        try:
            tensor = self.constant(value)
            if tensor is not None:
                fact = constant_fact(tensor)
                if fact.contents is not None:
                    ir.read_for_facts(value)
                return fact
        except _MALFORMED:
            return UNKNOWN
        if value.is_graph_input() and value.graph is self.world.model.graph:
            return self._declared_input(value)
        if value.is_graph_input() and value.graph is not None:
            return self._argument(value, value.graph)
        held = value.const_value
        if held is not None:  # a variable: its contents are not told, and the rest stands
            return Fact(held.dtype, tuple(held.shape.numpy()))
        return UNKNOWN

    def _argument(self, value: ir.Value, graph: ir.Graph) -> Fact:
        """What is true of the input of a function in all calls of it."""
        found = self.world.calls(graph)
        if found is None or self._callers >= _CALL_DEPTH:
            return UNKNOWN
        function, calls = found
        index = function.inputs.index(value)
        self._callers += 1
        try:
            given = [call.inputs[index] if index < len(call.inputs) else None for call in calls]
            facts = [UNKNOWN if argument is None else self.need(argument) for argument in given]
        finally:
            self._callers -= 1
        return joined(facts, self.fresh)

    def _declared_input(self, value: ir.Value) -> Fact:
        """The facts of an input of the model, whose declaration the runtime enforces."""
        declared = value.type
        if isinstance(declared, ir.SequenceType | ir.OptionalType):
            return declared_fact(declared)
        if not isinstance(declared, ir.TensorType):
            return UNKNOWN
        world = self.world
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
            dims.append(world.named(name))
        return Fact(declared.dtype, tuple(dims))

    # one node

    def _infer(self, node: ir.Node) -> None:
        if self.world.budget.over:
            self.world.budget.unknown += 1
            for output in node.outputs:
                self.settle(output, UNKNOWN)
            return
        given = NodeFacts(self, node)
        fill = None
        try:
            result = () if node in self._inside else self._apply(given)
            fill = fill_of(given)
        except UnknownAttribute:
            result = ()
        except _MALFORMED as error:
            self.world.failures.append((node, error))
            result = ()
        facts = (result,) if isinstance(result, Fact) else tuple(result or ())
        for index, output in enumerate(node.outputs):
            fact = facts[index] if index < len(facts) else UNKNOWN
            shape = fact.shape
            if shape is not None:
                for dim in shape:
                    if dim.__class__ is int and dim < 0:  # the node is bound to fail
                        fact = Fact(fact.dtype, self._without_negatives(shape))
                        break
            if fill is not None:
                fact = fact.filled(fill)
            self.settle(output, fact)

    def _apply(self, given: NodeFacts) -> Fact | Iterable[Fact] | None:
        node = given.node
        if node.op_type not in _HAVE_BODIES:
            return self._told(given)
        self._inside.add(node)  # a malformed body may ask for what its own node gives
        try:
            return self._told(given)
        finally:
            self._inside.discard(node)

    def _told(self, given: NodeFacts) -> Fact | Iterable[Fact] | None:
        """What a function, a shape rule or onnx tells of the outputs of a node."""
        node = given.node
        world = self.world
        functions = world.model.functions
        # of a function named like an operator of its own, onnxruntime may run the operator
        if functions and node.domain not in ir.RUNTIME_DOMAINS:
            function = functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                return self._call(given, function)
        rule = world.rules.get((node.domain, node.op_type))
        result = None if rule is None else rule(given)
        if node.domain == ir.MICROSOFT:
            return with_vendor_types(given, result)
        return fallback.infer(given) if result is None else result

    def _call(self, given: NodeFacts, function: ir.Function) -> list[Fact]:
        """The facts of a call, inferred through the body of the function."""
        world = self.world
        world.calls_left -= len(function)
        if self.depth >= _CALL_DEPTH or world.calls_left < 0:
            return []
        attributes = {name: a for name, a in function.attributes.items() if a.value is not None}
        for name, attribute in given.node.attributes.items():
            resolved = self.resolve(attribute) if attribute.is_ref() else attribute
            if resolved is not None:
                attributes[name] = resolved
        scope = Inference(world, attributes, self.depth + 1)
        for index, value in enumerate(function.inputs):
            scope.facts[value] = given.fact(index) if given.has(index) else ABSENT
            tensor = given.constant(index)
            if tensor is not None:
                scope.tensors[value] = tensor
        return [scope.need(value) for value in function.outputs]

    def _without_negatives(self, shape: ShapeTuple) -> ShapeTuple:
        return tuple(self.fresh("dim") if isinstance(dim, int) and dim < 0 else dim for dim in shape)


class Attempt:
    """Facts that were inferred from premises which may turn out too strong."""

    def __init__(self, scope: Inference, results: list[Fact], trail: list[ir.Value]) -> None:
        self.results = results
        self._scope = scope
        self._trail = trail

    def withdraw(self) -> None:
        """Forget the premises and all that was inferred from them."""
        for value in self._trail:
            self._scope.facts.pop(value, None)


def declared_fact(declared: ir.TypeProtocol) -> Fact:
    """The fact that a declared type states: all but the shape, which is not enforced for elements."""
    if isinstance(declared, ir.SequenceType | ir.OptionalType):
        return Fact(container=type(declared), element=declared_fact(declared.elem_type))
    return Fact(declared.dtype) if isinstance(declared, ir.TensorType) else UNKNOWN
