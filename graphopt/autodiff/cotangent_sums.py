"""Cotangents of values, accumulated over the readers of each value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder


class CotangentSums:
    """The cotangents of values, accumulated over their readers.

    Args:
        op: appends the nodes of sums.
        initial: a cotangent of some values.
        add: appends the sum of two cotangents of a value.
    """

    def __init__(
        self,
        op: GraphBuilder,
        initial: Mapping[ir.Value, ir.Value],
        add: Callable[[GraphBuilder, ir.Value, ir.Value], ir.Value],
    ) -> None:
        self._op, self._add = op, add
        self._terms = {value: [dy] for value, dy in initial.items()}

    def add(self, value: ir.Value, dx: ir.Value) -> None:
        """Add ``dx`` to the cotangent of ``value``."""
        self._terms.setdefault(value, []).append(dx)

    def total(self, value: ir.Value) -> ir.Value | None:
        """The cotangent of ``value`` once all of its readers are processed; ``None`` for zero."""
        terms = self._terms.get(value)
        if terms is None:
            return None
        while len(terms) > 1:
            last = terms.pop()
            self._op.prefix = f"{value.name}_grad"
            terms[-1] = self._add(self._op, terms[-1], last)
        return terms[0]
