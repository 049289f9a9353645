"""A graph with or without a proposed rewrite."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import field

from graphopt import ir
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class View:
    """A graph with or without a proposed rewrite.

    Attributes:
        graph: the graph of the rewrite.
        replacements: replaced values, with their replacements.
        made: nodes to be inserted.
        removed: nodes to be removed.
    """

    graph: ir.Graph
    replacements: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    made: tuple[ir.Node, ...] = ()
    removed: Container[ir.Node] = ()

    def input(self, node: ir.Node, index: int = 0) -> ir.Value | None:
        """An input of ``node``."""
        value = node.inputs[index] if index < len(node.inputs) else None
        return None if value is None else self.replacements.get(value, value)

    def producer(self, value: ir.Value | None) -> ir.Node | None:
        """The producer of ``value``, if it is in the graph of the rewrite."""
        node = None if value is None else value.producer()
        known = node is not None and (node.graph is self.graph or any(node is one for one in self.made))
        return node if known else None

    def readers(self, value: ir.Value) -> Iterator[ir.Node]:
        """The readers of ``value``, including readers in bodies, each once.

        A value may have thousands, but most callers stop at the second.
        """
        found: set[ir.Node] = set()
        for source in self._replaced_by(value):
            for node in ir.readers(source):
                if node not in self.removed and node not in found:
                    found.add(node)
                    yield node
        yield from (node for node in self.made if any(one is value for one in node.inputs))

    def is_output(self, value: ir.Value) -> bool:
        """Whether ``value`` is a graph output."""
        return any(source.is_graph_output() for source in self._replaced_by(value))

    def _replaced_by(self, value: ir.Value) -> Iterator[ir.Value]:
        """``value``, and the values that it would replace."""
        if value not in self.replacements:
            yield value
        yield from (old for old, new in self.replacements.items() if new is value)
