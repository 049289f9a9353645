"""What the inference of all scopes of one model shares: symbols, ranges, equalities, counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from graphopt import ir
from graphopt.analysis.shape_inference.facts import Fact
from graphopt.analysis.shape_inference.rules import shape_rules
from graphopt.analysis.symbolic import (
    Atom,
    Bound,
    Dim,
    SymDim,
    fresh_symbol,
    lone_atom,
    replace_atoms,
    symbol,
    symbols,
    within,
)
from graphopt.util.budget import Budget

_CALL_BUDGET = 50_000  # nodes inferred within calls of functions, over the life of a World


class World:
    """What all scopes of one model share.

    Attributes:
        failures: nodes on which a rule raised, with the exception; their outputs are unknown.
    """

    def __init__(
        self,
        model: ir.Model,
        constant: Callable[[ir.Value], ir.TensorProtocol | None],
        version: Callable[[ir.Node], int],
        ranges: Mapping[str, tuple[Bound, Bound]],
        budget: Budget,
    ) -> None:
        self.model = model
        self.constant = constant
        self.version = version
        self.ranges = ranges
        self.budget = budget
        self.rules = shape_rules()
        self.failures: list[tuple[ir.Node, Exception]] = []
        self.calls_left = _CALL_BUDGET
        self._names: dict[str, Dim] = {}
        self._born = 0
        self._guarded: dict[str, SymDim] = {}
        self._guarded_names: set[str] = set()
        self._scopes: ir.Scopes | None = None
        self._calls: dict[ir.Graph, tuple[ir.Function, list[ir.Node]]] | None = None
        self._learned: dict[Atom, Dim] = {}
        self._resolved: dict[SymDim, Dim] = {}
        self._reserve_names()

    def _reserve_names(self) -> None:
        """Make the model's own dim names, before any name is made up."""
        for value in self.model.graph.inputs:
            for dim in value.shape or ():
                if isinstance(dim, ir.SymbolicDim) and dim.value not in ir.ANONYMOUS_DIMS and dim.value:
                    self.named(dim.value)

    def named(self, name: str) -> Dim:
        """The dim called ``name`` in the model: a symbol, or its size where that is assumed."""
        dim = self._names.get(name)
        if dim is None:
            lo, hi = self.ranges.get(name, (0, math.inf))
            dim = self._names[name] = lo if isinstance(lo, int) and lo == hi else symbol(name, lo, hi)
        return dim

    def fresh(self, hint: str, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
        """A new symbol, numbered in the order of asking."""
        while True:
            self._born += 1
            if f"{hint}?{self._born}" not in self._names:
                return fresh_symbol(hint, self._born, lo, hi)

    def guarded(self, name: str) -> SymDim:
        """The size that guards call ``name``: a symbol of its own, whatever the model calls its dims."""
        dim = self._guarded.get(name)
        if dim is None:
            dim = self._guarded[name] = self.fresh(name)
            self._guarded_names.update(symbols(dim))
        return dim

    @property
    def born(self) -> int:
        """The number of the newest fresh symbol."""
        return self._born

    # equalities that hold in every run which completes

    def equate(self, vague: Dim, dim: Dim) -> None:
        """Learn that ``vague``, if it is a lone atom, always equals ``dim``, and use that from now on.

        Nothing is learned of sizes that guards name: they are the same wherever a guard names them, and
        what is found at one place may hold only in runs that get there.
        """
        if self._guarded and not self._guarded_names.isdisjoint(symbols(vague)):
            return
        atom, dim = lone_atom(vague), self.resolved(dim)
        if atom is not None and not within(atom, dim):
            self._learned[atom] = dim
            self._resolved.clear()

    def resolved(self, dim: Dim) -> Dim:
        """``dim`` with the equalities learned so far put in."""
        if not self._learned or isinstance(dim, int):
            return dim
        result = self._resolved.get(dim)
        if result is None:
            result = dim
            for _ in range(4):  # what is put in may hold something that was learned about later
                before, result = result, replace_atoms(result, self._learned)
                if result == before:
                    break
            self._resolved[dim] = result
        return result

    def refreshed(self, fact: Fact) -> Fact:
        """``fact`` with the equalities learned so far put in."""
        if fact.known_equal == len(self._learned):
            return fact
        fact.known_equal = len(self._learned)
        shape, contents = fact.shape, fact.contents
        if shape is not None:
            shape = tuple(map(self.resolved, shape))
        if contents is not None:
            contents = tuple(map(self.resolved, contents))
        if shape == fact.shape and contents == fact.contents:
            return fact
        result = Fact(fact.dtype, shape, contents, fill=fact.fill)
        result.known_equal = fact.known_equal
        return result

    # scopes

    def calls(self, graph: ir.Graph) -> tuple[ir.Function, list[ir.Node]] | None:
        """The function whose body ``graph`` is, and all calls of it; ``None`` if it is none.

        Nor is one told of a model with training info, which may hold calls that nobody sees.
        Calls that came later are copies of these, or told of by :meth:`forget_calls`.
        """
        if self._calls is None:
            functions = self.model.functions
            if ir.Carried.training_info(self.model):
                functions = {}
            by_key: dict[object, list[ir.Node]] = {key: [] for key in functions}
            for inner in ir.graphs_of(self.model) if functions else ():
                for node in inner:
                    if node.op_identifier() in by_key:
                        by_key[node.op_identifier()].append(node)
            self._calls = {held.graph: (held, by_key[key]) for key, held in functions.items()}
        return self._calls.get(graph)

    def forget_calls(self) -> None:
        """Functions are called from new places."""
        self._calls = None

    def holder(self, graph: ir.Graph) -> ir.Node | None:
        """The node whose body ``graph`` is."""
        for _ in range(2):  # an edit may have given the body to another node
            if self._scopes is None:
                self._scopes = ir.Scopes(self.model)
            try:
                node = self._scopes.holder(graph)
            except KeyError:
                return None
            if node is None or (node.graph is not None and graph in ir.bodies(node)):
                return node
            self._scopes = None
        return None
