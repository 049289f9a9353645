"""A match of a rule's pattern, with queries for the function of the rule."""

from __future__ import annotations

from itertools import islice
from typing import Any, NoReturn

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import UnknownAttribute
from graphopt.context import Context, Dim, Refusal
from graphopt.rewrite.operand_checks import attribute_of
from graphopt.rewrite.pattern import OpPattern
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
        self._nodes = nodes
        self.root = root
        self.nodes = tuple(nodes.values())
        self.cx = cx

    def node(self, tag: str) -> ir.Node:
        """The node that matched the operator with this ``tag``."""
        return next(node for pattern, node in self._nodes.items() if pattern.tag == tag)

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
