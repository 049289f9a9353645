"""State shared by all scopes of one model's inference: symbols, ranges, equalities, budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import ShapeRule
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import (
    Atom,
    Bound,
    Dim,
    SymDim,
    contains_atom,
    fresh_symbol,
    lone_atom,
    replace_atoms,
    symbol,
    symbols,
)
from graphopt.util.dim_expressions import expression, is_expression
from graphopt.util.resource_budget import Budget

#: Maximum number of nodes inferred within calls of functions, over the lifetime of an InferenceState.
_CALL_BUDGET = 50_000


class InferenceState:
    """State shared by all scopes of one model.

    Attributes:
        failures: nodes whose rule raised, with the exception; their outputs are unknown.
        refinements: the number of times that a known fact changed, or became more precise.
    """

    def __init__(
        self,
        model: ir.Model,
        constant: Callable[[ir.Value], ir.TensorProtocol | None],
        version: Callable[[ir.Node], int],
        ranges: Mapping[str, tuple[Bound, Bound]],
        budget: Budget,
        rules: Mapping[tuple[str, str], ShapeRule],
    ) -> None:
        self.model = model
        self.constant = constant
        self.version = version
        self.ranges = ranges
        self.budget = budget
        self.rules = rules
        self.failures: list[tuple[ir.Node, Exception]] = []
        self.refinements = 0
        self.calls_left = _CALL_BUDGET
        self._names: dict[str, Dim] = {}
        self._newest = 0
        self._guard_symbols: dict[str, SymDim] = {}
        self._guard_names: set[str] = set()
        self._scopes: ir.Scopes | None = None
        self._calls: dict[ir.Graph, tuple[ir.Function, list[ir.Node]]] | None = None
        self._equalities: dict[Atom, Dim] = {}
        self._resolved: dict[SymDim, Dim] = {}
        self._reserve_names()

    def _reserve_names(self) -> None:
        """Create symbols for the dim names of the model first, so that fresh symbols have other names.

        A name such as ``past + seq`` is the sum of the dims that it names, unless it has a range of its own.
        """
        dims = [dim for value in self.model.graph.inputs for dim in value.shape or ()]
        declared = [dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value]
        names = dict.fromkeys(name for name in declared if name not in ir.ANONYMOUS_DIMS)
        derived = [name for name in names if name not in self.ranges and is_expression(name, names)]
        for name in names:
            if name not in derived:
                self.declared_symbol(name)
        for name in derived:
            try:
                self._names[name] = expression(name, self._names)
            except (KeyError, TypeError, ZeroDivisionError):  # a quotient of dims, or a longer chain
                self.declared_symbol(name)

    def declared_symbol(self, name: str) -> Dim:
        """The symbol of the model's dim ``name``, or its size if the caller guarantees one."""
        dim = self._names.get(name)
        if dim is None:
            lo, hi = self.ranges.get(name, (0, math.inf))
            dim = self._names[name] = lo if isinstance(lo, int) and lo == hi else symbol(name, lo, hi)
        return dim

    def fresh(self, hint: str, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
        """A new symbol, numbered in order of creation."""
        while True:
            self._newest += 1
            if f"{hint}?{self._newest}" not in self._names:
                return fresh_symbol(hint, self._newest, lo, hi)

    def guard_symbol(self, name: str) -> SymDim:
        """The symbol ``name`` of guards, which is distinct from the model's dim of that name."""
        dim = self._guard_symbols.get(name)
        if dim is None:
            dim = self._guard_symbols[name] = self.fresh(name)
            self._guard_names.update(symbols(dim))
        return dim

    @property
    def newest_symbol(self) -> int:
        """The number of the newest fresh symbol."""
        return self._newest

    # equalities that hold in every completed run

    def equate(self, vague: Dim, dim: Dim) -> None:
        """Record that ``vague`` always equals ``dim``, if ``vague`` is a single atom.

        Equalities about symbols of guards are ignored. All guards with the same name share a symbol, and an
        equality found at one guard may hold only in runs that reach this guard.
        """
        if self._guard_symbols and not self._guard_names.isdisjoint(symbols(vague)):
            return
        atom, dim = lone_atom(vague), self.resolved(dim)
        if atom is not None and not contains_atom(atom, dim) and self._equalities.get(atom) != dim:
            self.refinements += 1
            self._equalities[atom] = dim
            self._resolved.clear()

    def resolved(self, dim: Dim) -> Dim:
        """``dim`` after substitution of the equalities found so far."""
        if not self._equalities or isinstance(dim, int):
            return dim
        result = self._resolved.get(dim)
        if result is None:
            result = dim
            for _ in range(4):  # substituted dims may contain atoms with equalities that were found later
                before, result = result, replace_atoms(result, self._equalities)
                if result == before:
                    break
            self._resolved[dim] = result
        return result

    def refreshed(self, fact: Fact) -> Fact:
        """``fact`` after substitution of the equalities found so far."""
        if fact.known_equal == len(self._equalities):
            return fact
        fact.known_equal = len(self._equalities)
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
        """The function with body ``graph``, and all its calls; ``None`` if there is no such function.

        Always ``None`` for a model with training info, which may contain opaque calls. Calls added later
        are copies of the existing ones, or are reported by :meth:`invalidate_calls`.
        """
        if self._calls is None:
            functions = self.model.functions
            if ir.has_training_info(self.model):
                functions = {}
            by_key: dict[object, list[ir.Node]] = {key: [] for key in functions}
            for inner in ir.graphs_of(self.model) if functions else ():
                for node in inner:
                    if node.op_identifier() in by_key:
                        by_key[node.op_identifier()].append(node)
            self._calls = {function.graph: (function, by_key[key]) for key, function in functions.items()}
        return self._calls.get(graph)

    def invalidate_calls(self) -> None:
        """Collect the calls of functions again, because of new calls."""
        self._calls = None

    def holder(self, graph: ir.Graph) -> ir.Node | None:
        """The node with body ``graph``."""
        for _ in range(2):  # an edit may have moved the body to another node
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
