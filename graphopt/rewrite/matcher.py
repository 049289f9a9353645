"""Match a pattern against a node, by backtracking over commutative operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.fills import is_number, may_fill
from graphopt.analysis.shape_inference.node_facts import UnknownAttribute
from graphopt.context import Context, Dim, Refusal
from graphopt.ops import traits
from graphopt.rewrite.pattern import Literal, Operand, OpPattern, Var
from graphopt.rewrite.traced_array import TracedArray, trace


class Refused(Exception):
    """The rewrite is refused by a function that the rule calls.

    Attributes:
        refusal: the refusal that the rule returns in this case.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class Match:
    """One match of a rule's pattern: the matched nodes, and queries about values.

    Attributes:
        rule: the name of the rule.
        root: the node whose outputs are to be replaced.
        nodes: the matched nodes, root first.
        cx: the context of the run.
    """

    def __init__(self, rule: str, root: ir.Node, nodes: dict[OpPattern, ir.Node], cx: Context) -> None:
        self.rule = rule
        self._tags = {pattern.tag: node for pattern, node in nodes.items() if pattern.tag}
        self.root = root
        self.nodes = tuple(nodes.values())
        self.cx = cx

    def node(self, tag: str) -> ir.Node:
        """The node that matched the operator with this ``tag``."""
        return self._tags[tag]

    @property
    def graph(self) -> ir.Graph:
        """The graph of the root."""
        assert self.root.graph is not None
        return self.root.graph

    @property
    def version(self) -> int:
        """The ai.onnx opset version of the root's graph."""
        imports = self.cx.edit.scopes.imports(self.graph)
        return ir.standard_version(imports)

    def no(
        self, reason: str, value: ir.Value | None = None, *, hint: str | None = None, shared: bool = False
    ) -> Refusal:
        """Refuse the rewrite, for a reason that dumps and ``explain`` show.

        Args:
            reason: one phrase.
            value: the value that prevents the rewrite.
            hint: a change of the model or an option that would allow the rewrite.
            shared: whether ``value`` prevents the rewrite because it has other readers.
        """
        name = value.name if value is not None else None
        return Refusal(self.rule, ir.label(self.root), reason, name, hint, shared)

    def refuse(
        self, reason: str, value: ir.Value | None = None, *, hint: str | None = None, shared: bool = False
    ) -> NoReturn:
        """Refuse the rewrite like :meth:`no`, from a function that the rule calls.

        Raises:
            Refused: always; the refusal becomes the result of the rule.
        """
        raise Refused(self.no(reason, value, hint=hint, shared=shared))

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The dims of ``value``, perhaps symbolic."""
        return self.cx.shape(value)

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank of ``value``."""
        return self.cx.rank(value)

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type of ``value``."""
        return self.cx.dtype(value)

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The contents of a small integer tensor with known elements."""
        return self.cx.static_ints(value)

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """The contents of a constant."""
        return self.cx.constant(value)

    def traced(self, value: ir.Value | None) -> TracedArray | None:
        """The contents of a constant to compute with, even if the contents change later."""
        return trace(value, self.graph, self.cx)

    def fill(self, value: ir.Value | None) -> np.generic | None:
        """The number to which all elements of ``value``, a constant or not, are provably equal."""
        return self.cx.fill(value)

    def attribute(self, node: ir.Node, name: str) -> Any:
        """Attribute ``name`` of ``node`` as a Python value, or the schema's default if it is absent.

        Raises:
            UnknownAttribute: the attribute refers to a parameter of the function; the match is then refused.
        """
        value = attribute_of(node, name, self.cx.version(node))
        if isinstance(value, ir.Attr):
            raise UnknownAttribute(name)
        return value

    def only_use(self, value: ir.Value) -> bool:
        """Whether ``value`` has exactly one use in the model, and is not a graph output.

        The uses of a constant with shared storage are never exclusive.
        """
        alone = not value.is_graph_output() and len(list(islice(ir.readers(value), 2))) == 1
        return alone and not self.cx.is_tied(value)

    def read_by_others(self) -> ir.Value | None:
        """A value inside the match with readers outside it, if any."""
        inside = self.nodes
        for node in inside[1:]:
            for output in node.outputs:
                if output.is_graph_output() or any(
                    not any(user is own for own in inside) for user in ir.readers(output)
                ):
                    return output
        return None


def attribute_of(node: ir.Node, name: str, version: int) -> Any:
    """Attribute ``name`` as a Python value, or its default at opset ``version``; ``None`` without either.

    For a reference to a function's attribute, the value is unknown, and the :class:`ir.Attr` is returned.
    """
    attribute = node.attributes.get(name)
    if attribute is None:
        return traits.default_attribute(node.domain, node.op_type, version, name)
    return attribute if attribute.is_ref() else attribute.value


Bindings = dict[str, Any]
_Operand = ir.Value | tuple[ir.Value | None, ...] | None  # a tuple for ``rest()``
_Goal = tuple[Operand, _Operand]


class Matcher:
    """Matches patterns at given roots."""

    def __init__(self, cx: Context) -> None:
        self._cx = cx

    def match(self, pattern: OpPattern, root: ir.Node) -> tuple[Bindings, dict[OpPattern, ir.Node]] | None:
        """The bindings and nodes of the first match at ``root``, or ``None``."""
        if not _may_match(pattern, root):
            return None
        for bindings, nodes in self._node(pattern, root, {}, {}):
            return bindings, nodes
        return None

    def _node(
        self, pattern: OpPattern, node: ir.Node, bindings: Bindings, nodes: dict[OpPattern, ir.Node]
    ) -> Iterator[tuple[Bindings, dict[OpPattern, ir.Node]]]:
        if node.op_type not in pattern.op_types or node.domain != pattern.domain or node.overload:
            return
        known = nodes.get(pattern)
        if known is not None:
            if known is node:
                yield bindings, nodes
            return
        if pattern.outputs is not None and pattern.outputs != len(node.outputs):
            return
        if pattern.attributes:
            bound = self._attributes(pattern, node, bindings)
            if bound is None:
                return
            bindings = bound
        nodes = {**nodes, pattern: node}
        for order in self._orders(pattern, node):
            yield from self._operands(order, bindings, nodes)

    def _orders(self, pattern: OpPattern, node: ir.Node) -> Iterator[list[_Goal]]:
        """The ways to pair operands with inputs: one, or two for commutative operators."""
        inputs = node.inputs
        goals: list[_Goal] = []
        for index, operand in enumerate(pattern.operands):
            if isinstance(operand, Var) and operand.kind == "rest":
                goals.append((operand, tuple(inputs[index:])))
                break
            goals.append((operand, inputs[index] if index < len(inputs) else None))
        else:
            if any(value is not None for value in inputs[len(pattern.operands) :]):
                return
        yield goals
        if len(goals) == 2 and len(inputs) == 2 and traits.is_commutative(node.domain, node.op_type):
            (a, x), (b, y) = goals
            yield [(a, y), (b, x)]

    def _operands(
        self, goals: list[_Goal], bindings: Bindings, nodes: dict[OpPattern, ir.Node]
    ) -> Iterator[tuple[Bindings, dict[OpPattern, ir.Node]]]:
        if not goals:
            yield bindings, nodes
            return
        (operand, value), rest = goals[0], goals[1:]
        for bound, matched in self._operand(operand, value, bindings, nodes):
            yield from self._operands(rest, bound, matched)

    def _operand(
        self, operand: Operand, value: _Operand, bindings: Bindings, nodes: dict[OpPattern, ir.Node]
    ) -> Iterator[tuple[Bindings, dict[OpPattern, ir.Node]]]:
        if isinstance(operand, Var):
            bound = self._variable(operand, value, bindings)
            if bound is not None:
                yield bound, nodes
            return
        if value is None or isinstance(value, tuple):
            return
        if isinstance(operand, Literal):
            if self._is_number(value, operand.number):
                yield bindings, nodes
            return
        pattern, index = (operand, 0) if isinstance(operand, OpPattern) else (operand.node, operand.index)
        producer = value.producer()
        if producer is None or index >= len(producer.outputs) or producer.outputs[index] is not value:
            return
        if not _same_graph(producer, nodes):
            return
        yield from self._node(pattern, producer, bindings, nodes)

    def _is_number(self, value: ir.Value, number: float) -> bool:
        """Whether every element of ``value`` is known to be ``number``."""
        tensor = ir.constant_of(value)
        if tensor is None:
            return is_number(self._cx.facts.fill(value), number)
        found = is_number(ir.fill_of_tensor(tensor), number)
        if found:
            ir.read(value)
        return found

    def _variable(self, variable: Var, value: _Operand, bindings: Bindings) -> Bindings | None:
        if value is None and variable.kind != "optional":
            return None
        if variable.kind == "constant" and (isinstance(value, tuple) or ir.computable(value) is None):
            return None
        if variable.name in bindings:
            return bindings if bindings[variable.name] is value else None
        return {**bindings, variable.name: value}

    def _attributes(self, pattern: OpPattern, node: ir.Node, bindings: Bindings) -> Bindings | None:
        bindings = dict(bindings)
        version = self._cx.version(node)
        for name, expected in pattern.attributes.items():
            value = attribute_of(node, name, version)
            if isinstance(value, ir.Attr):
                return None
            if isinstance(expected, Var):
                if expected.name in bindings and bindings[expected.name] != value:
                    return None
                bindings[expected.name] = value
            elif value != expected:
                return None
        return bindings


def _may_match(pattern: OpPattern, node: ir.Node) -> bool:
    """Whether the producers of ``node``'s operands, in some order, are operators that ``pattern`` needs."""
    needs = pattern.needs
    if not needs or _produced_by(node, needs, swapped=False):
        return True
    swaps = len(pattern.operands) == 2 and traits.is_commutative(node.domain, node.op_type)
    return swaps and len(node.inputs) == 2 and _produced_by(node, needs, swapped=True)


def _produced_by(
    node: ir.Node, needs: Iterable[tuple[int, tuple[str, ...] | None]], *, swapped: bool
) -> bool:
    inputs = node.inputs
    for index, op_types in needs:
        position = 1 - index if swapped else index
        value = inputs[position] if position < len(inputs) else None
        if value is None:
            return False
        producer = value.producer()
        if op_types is None:
            if producer is not None and producer.op_type != "Constant" and not may_fill(producer.op_type):
                return False
        elif producer is None or producer.op_type not in op_types:
            return False
    return True


def _same_graph(producer: ir.Node, nodes: dict[OpPattern, ir.Node]) -> bool:
    """Whether ``producer`` is in the graph of the root: patterns do not match across graphs."""
    root = next(iter(nodes.values()))
    return producer.graph is root.graph
