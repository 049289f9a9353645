"""The constraints between the sizes of a model's dynamic dims, derived from its graph.

Constraints are collected node by node, in order. An equality that can be solved for a symbol is substituted
immediately, so that it applies to the shapes of later nodes. Inequalities, and equations that can't be
solved for one symbol, are checked for each binding; its sizes are adjusted until all constraints hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import (
    Dim,
    Symbol,
    SymDim,
    at_least,
    bounds,
    contains_atom,
    dim_of_atom,
    divide_exactly,
    evaluate,
    lone_atom,
    polynomial,
    symbols,
)
from graphopt.inputs.dim_bindings import Binding, Dimensions
from graphopt.inputs.integer_range_analysis import ValueBounds
from graphopt.inputs.operator_size_constraints import size_constraints
from graphopt.inputs.size_constraint import SizeConstraint, least
from graphopt.inputs.size_solver import LARGEST, Range, solve
from graphopt.util.dim_expressions import expression
from graphopt.util.resource_budget import Budget

#: Seconds for collecting constraints.
_SECONDS = 4.0


class ConstraintSystem:
    """The constraints on the sizes of symbols.

    Args:
        model: the model; its shape facts are kept.
        dimensions: the dims of its inputs.
        known: fixed sizes of symbols.
        ranges: smallest and largest size of other symbols.
    """

    def __init__(
        self,
        model: ir.Model,
        dimensions: Dimensions,
        known: Mapping[str, int],
        ranges: Mapping[str, Range],
    ) -> None:
        self._ranges = {name: ranges.get(name, (1, None)) for name in dimensions.symbols}
        self._late = dimensions.batch
        budget = Budget(seconds=_SECONDS)
        self._facts = ShapeFacts(
            model,
            constant=ir.constant_of,
            version=ir.Scopes(model).version,
            # facts need not hold for sizes of 0, which are tried separately
            ranges={name: (known.get(name, 1), known.get(name, math.inf)) for name in dimensions.symbols},
            budget=budget,
        )
        self._order = {name: place for place, name in enumerate(dimensions.symbols)}
        self._symbols: dict[str, Dim] = {}
        self._rest: dict[SizeConstraint, None] = {}
        self._sites: dict[str, ir.Node] = {}
        self._adjusted: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        self._name_dims(model, dimensions)
        with budget:
            self._gather(model, budget)

    def _gather(self, model: ir.Model, budget: Budget) -> None:
        """Add the constraints of all nodes, of the main graph first, within the time budget."""
        values = ValueBounds(self._facts)
        for graph in ir.graphs_of(model):
            for node in graph:
                if budget.over:
                    return
                if node.name:
                    self._sites.setdefault(node.name, node)
                for constraint in size_constraints(node, self._facts, values):
                    self.add(constraint)

    def _name_dims(self, model: ir.Model, dimensions: Dimensions) -> None:
        """Map names to the symbols of the facts, and derive symbols that are expressions over others."""
        derived: dict[str, Dim] = {}
        for value in model.graph.inputs:
            declared = dimensions.dims.get(value.name or "", ())
            for name, dim in zip(declared, self._facts.shape(value) or (), strict=False):
                if isinstance(name, str):
                    (self._symbols if name in self._order else derived)[name] = dim
        for name, dim in derived.items():
            try:
                self._facts.assume_equal(dim, expression(name, self._symbols))
            except (KeyError, TypeError, ZeroDivisionError):
                continue

    # Constraints -------------------------------------------------------------------------------

    def add(self, constraint: SizeConstraint) -> bool:
        """Add ``constraint`` unless it contradicts known ones; returns whether it adds information."""
        self._adjusted.clear()
        left, right = self._facts.resolved(constraint.left), self._facts.resolved(constraint.right)
        constraint = SizeConstraint(constraint.kind, left, right)
        if constraint.kind == "least":
            return self._add_rest(constraint)
        if constraint.kind == "broadcast" and 1 in (left, right):
            return False
        difference = _without_nonzero_factors(left - right)
        if isinstance(difference, int):
            return False
        for symbol, dim in _solutions(difference, self._order):
            if self._may_be(symbol, dim):
                self._facts.assume_equal(dim_of_atom(symbol), dim)
                return True
        return self._add_rest(constraint)

    def _may_be(self, symbol: Symbol, dim: Dim) -> bool:
        """Whether ``dim`` can be within the range of ``symbol``."""
        first, last = self._ranges.get(symbol.name, (0, None))
        low, high = bounds(dim)
        return high >= first and (last is None or low <= last)

    def _add_rest(self, constraint: SizeConstraint) -> bool:
        names = {**symbols(constraint.left), **symbols(constraint.right)}
        if not names or any(name not in self._order for name in names) or constraint in self._rest:
            return False
        if constraint.kind == "least" and at_least(constraint.left - constraint.right, 0):
            return False
        self._rest[constraint] = None
        return True

    def symbols(self) -> list[Dim]:
        """The sizes of the symbols that are not known numbers."""
        sizes = map(self._facts.resolved, self._symbols.values())
        return [size for size in dict.fromkeys(sizes) if not isinstance(size, int)]

    def inputs_at(self, node: str) -> list[tuple[Dim, ...]]:
        """The shapes of the inputs of the node with this name, without inputs of unknown rank."""
        site = self._sites.get(node)
        values = [] if site is None else [value for value in site.inputs if value is not None]
        shapes = [self._facts.shape(value) for value in values]
        return [tuple(map(self._facts.resolved, shape)) for shape in shapes if shape is not None]

    # Bindings ----------------------------------------------------------------------------------

    def adjust(self, binding: Binding) -> dict[str, int]:
        """``binding`` with sizes adjusted until all constraints hold, as far as the solver succeeds.

        Sizes of 0 are unchanged unless they follow from other sizes.
        """
        key = tuple(binding.items())
        if key not in self._adjusted:
            self._adjusted[key] = self._adjust(binding)
        return dict(self._adjusted[key])

    def _adjust(self, binding: Binding) -> dict[str, int]:
        sizes = {name: self._facts.resolved(dim) for name, dim in self._symbols.items() if name in binding}
        free = {name: binding[name] for dim in sizes.values() for name in symbols(dim) if name in binding}
        rules = [*self._resolved_rest(), *self._within_ranges(sizes)]
        values = solve(free, rules, self._ranges, self._late)
        found = dict(binding)
        for name, dim in sizes.items():
            size = evaluate(dim, values)
            if size is not None:
                found[name] = max(size, 0)
        return found

    def _resolved_rest(self) -> Iterator[SizeConstraint]:
        resolved = self._facts.resolved
        rules = (SizeConstraint(rule.kind, resolved(rule.left), resolved(rule.right)) for rule in self._rest)
        yield from dict.fromkeys(rules)

    def _within_ranges(self, sizes: Mapping[str, Dim]) -> Iterator[SizeConstraint]:
        """Constraints that keep derived sizes within their ranges."""
        for name, dim in sizes.items():
            if lone_atom(dim) is not None:
                continue
            first, last = self._ranges[name]
            yield least(dim, max(first, 1))
            if last is not None:
                yield least(last, dim)


def _without_nonzero_factors(difference: Dim) -> Dim:
    """``difference`` divided by factors that are never 0: numbers and sizes."""
    if isinstance(difference, int):
        return difference
    first, *others = (monomial for monomial, _ in difference.terms)
    for atom in dict.fromkeys(first):
        if isinstance(atom, Symbol) and all(atom in monomial for monomial in others):
            quotient = divide_exactly(difference, dim_of_atom(atom))
            return difference if quotient is None else _without_nonzero_factors(quotient)
    return difference


def _solutions(difference: SymDim, order: Mapping[str, int]) -> list[tuple[Symbol, Dim]]:
    """Solutions of ``difference = 0`` for one symbol each, the best first.

    Solutions for symbols that the model does not name are first. Next, nonnegative solutions precede others,
    and then solutions for symbols late in ``order``.
    """
    found: list[tuple[Symbol, Dim]] = []
    for monomial, coefficient in difference.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Symbol):
            continue
        atom = monomial[0]
        rest = difference - polynomial({monomial: coefficient})
        dim = None if contains_atom(atom, rest) else divide_exactly(-rest, coefficient)
        if dim is not None and (atom.birth or all(not part.birth for part in symbols(dim).values())):
            found.append((atom, dim))
    names = symbols(difference)
    if not found and len(names) == 1:
        (atom,) = names.values()
        roots = _roots(difference, atom.name)
        found = [(atom, roots[0])] if len(roots) == 1 else []
    return sorted(
        found, key=lambda pair: (-pair[0].birth, not at_least(pair[1], 0), -order.get(pair[0].name, -1))
    )


def _roots(dim: SymDim, name: str) -> list[int]:
    """The two smallest sizes of ``name``, the only symbol, for which ``dim`` is 0."""
    found: list[int] = []
    for size in range(1, LARGEST):
        if evaluate(dim, {name: size}) == 0:
            found.append(size)
            if len(found) == 2:
                break
    return found
