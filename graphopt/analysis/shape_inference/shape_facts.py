"""Shape facts: dtypes, shapes and small contents of a model's values, without running the model.

Facts are stored in a table beside the model. They are inferred on demand from a value's producer, and cached.
The model itself is not modified. Its declarations are trusted for inputs only. The facts of a node's outputs
are inferred by a rule of :mod:`graphopt.analysis.shape_inference.rules`, or otherwise by onnx's inference. If
neither exists, the outputs are unknown, which is not an error.

A fact holds for every run that onnxruntime completes, for all values of the symbols, including 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.inference_engine import Inference, declared_fact
from graphopt.analysis.shape_inference.inference_state import InferenceState
from graphopt.analysis.shape_inference.node_facts import ShapeRule
from graphopt.analysis.shape_inference.rules import shape_rules
from graphopt.analysis.shape_inference.value_facts import Contents, Fact, ShapeTuple
from graphopt.analysis.symbolic import (
    Bound,
    Dim,
    Symbol,
    SymDim,
    ceildiv,
    equal,
    known_nonzero,
    lone_atom,
    product,
)
from graphopt.util.resource_budget import Budget

__all__ = ["ShapeFacts"]


class ShapeFacts:
    """Facts about the values of one model.

    Args:
        model: the model; it is not changed. Callers may edit it: facts of remaining values remain valid,
            because an edit never changes the contents of a value.
        constant: the tensor that a value always equals, or ``None``.
        version: the opset version of a node's domain in its graph.
        ranges: minimum and maximum of named dims, guaranteed by the caller: ``{"seq": (1, 512)}``;
            ``math.inf`` for no maximum.
        budget: time limit, after which values are unknown.
        rules: shape rules by domain and operator; by default graphopt's.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        constant: Callable[[ir.Value], ir.TensorProtocol | None],
        version: Callable[[ir.Node], int],
        ranges: Mapping[str, tuple[Bound, Bound]] | None = None,
        budget: Budget | None = None,
        rules: Mapping[tuple[str, str], ShapeRule] | None = None,
    ) -> None:
        self._state = InferenceState(
            model,
            constant,
            version,
            ranges or {},
            budget or Budget(),
            shape_rules() if rules is None else rules,
        )
        self._scope = Inference(self._state)
        self._outdated: dict[ir.Node, None] = {}

    @classmethod
    def of(cls, edit: ir.Editor, ranges: Mapping[str, tuple[Bound, Bound]], budget: Budget) -> ShapeFacts:
        """Facts about the model of ``edit``; edits update them, and the editor checks shapes with them."""
        facts = cls(
            edit.model,
            constant=ir.constant_of,
            version=edit.scopes.version,
            ranges=ranges,
            budget=budget,
        )
        edit.listeners.append(facts)
        edit.trusts_shape = facts.matches_declaration
        return facts

    def rebuild(self, edit: ir.Editor) -> ShapeFacts:
        """New facts after an external change of the model, with the same ranges and budget."""
        edit.listeners.remove(self)
        return ShapeFacts.of(edit, self._state.ranges, self._state.budget)

    # queries

    def shape(self, value: ir.Value) -> ShapeTuple | None:
        """The dims of a tensor: ints, or expressions over symbols; ``None`` if the rank is unknown.

        An unknown dim is a unique symbol, equal only to itself.
        """
        return self._scope.infer(value).shape

    def rank(self, value: ir.Value) -> int | None:
        """The number of dims."""
        shape = self._scope.infer(value).shape
        return None if shape is None else len(shape)

    def is_nonempty(self, value: ir.Value) -> bool:
        """Whether ``value`` provably has elements."""
        shape = self.shape(value)
        return shape is not None and all(map(known_nonzero, shape))

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a tensor; ``None`` if it is unknown or not a tensor."""
        dtype = self._scope.infer(value).dtype
        return None if dtype == ir.DataType.UNDEFINED else dtype

    def type(self, value: ir.Value) -> ir.TypeProtocol | None:
        """The tensor, sequence or optional type; ``None`` if any part of it is unknown."""
        return self._scope.infer(value).type

    def known_ints(self, value: ir.Value) -> Contents | None:
        """The elements of a small integer or boolean tensor (0 and 1) of rank 0 or 1.

        Entries may be expressions over symbols. ``None`` if they are unknown, or more than 256.
        """
        fact = self._scope.infer(value)
        return fact.contents if fact.shape is not None and len(fact.shape) <= 1 else None

    def fill(self, value: ir.Value) -> np.generic | None:
        """The common value of all elements of ``value``, compared bit by bit; ``None`` if unknown."""
        return self._scope.fill(value)

    def nbytes(self, value: ir.Value) -> Dim | None:
        """The size of all elements in bytes, possibly symbolic; ``None`` if unknown."""
        fact = self._scope.infer(value)
        if fact.shape is None or fact.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
            return None
        return ceildiv(product(fact.shape) * fact.dtype.bitwidth, 8)

    def dim_equal(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are provably equal."""
        return a == b or equal(self._state.resolved(a), self._state.resolved(b))

    def shape_equal(self, x: ir.Value, y: ir.Value) -> bool:
        """Whether two tensors provably have the same shape."""
        a, b = self.shape(x), self.shape(y)
        if a is None or b is None or len(a) != len(b):
            return False
        return all(map(self.dim_equal, a, b))

    # the model and its edits

    def matches_declaration(self, value: ir.Value) -> bool:
        """Whether the numbers in the declared shape of ``value`` are provably correct."""
        declared = value.shape
        if declared is None:
            return True
        inferred = self.shape(value)
        return (
            inferred is not None
            and len(inferred) == len(declared)
            and all(
                not isinstance(dim, int) or dim == own for dim, own in zip(declared, inferred, strict=True)
            )
        )

    def contradicts_declaration(self, value: ir.Value) -> bool:
        """Whether the rank or a size in the declared shape of ``value`` is wrong, if only for some inputs."""
        declared, inferred = value.shape, None if value.shape is None else self.shape(value)
        if declared is None or inferred is None:
            return False
        return len(inferred) != len(declared) or any(
            isinstance(dim, int) and dim != (found := self._state.resolved(own)) and _vagueness(found) < 3
            for dim, own in zip(declared, inferred, strict=True)
        )

    def infer_all(self) -> None:
        """Infer the facts of every value of the model, its bodies and its functions."""
        model = self._state.model
        self._scope.infer_graphs([model.graph, *(function.graph for function in model.functions.values())])

    def assume_like(self, value: ir.Value, like: ir.Value, *, sliced: bool = False) -> None:
        """Assume that ``value`` has the type and shape of ``like``.

        Args:
            value: a value without facts.
            like: a value with facts.
            sliced: assume the type and shape of one slice of ``like`` along its first axis instead.
        """
        self._state.refinements += 1
        fact = self._scope.infer(like)
        shape = fact.shape[1:] if sliced and fact.shape is not None else fact.shape
        self._scope.set(value, Fact(fact.dtype, shape, container=fact.container, element=fact.element))

    def assume_declared(self, value: ir.Value) -> None:
        """Assume the declared type of ``value`` if it has no facts."""
        if value.type is not None and value not in self._scope.facts:
            self._state.refinements += 1
            self._scope.set(value, declared_fact(value.type))

    def assume_equal(self, dim: Dim, other: Dim) -> None:
        """Assume that ``dim``, a single symbol, always equals ``other``.

        Existing facts are updated only where ``dim`` is a whole size, not part of an expression.
        """
        self._state.equate(dim, other)

    def resolved(self, dim: Dim) -> Dim:
        """``dim`` after substitution of the equalities found so far."""
        return self._state.resolved(dim)

    def set(self, value: ir.Value, fact: Fact) -> None:
        """Set the facts of ``value``, an input."""
        self._state.refinements += 1
        self._scope.set(value, fact)

    def invalidate(self, graph: ir.Graph) -> None:
        """Discard the facts inside ``graph``, the body of a function with new calls or a new body."""
        self._state.refinements += 1
        self._state.invalidate_calls()
        self._scope.invalidate(ir.with_bodies(graph))

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Merge the facts of ``old`` into the facts of ``new``, an equal value that replaces ``old``.

        If both are equally precise, the symbols of ``old`` are kept. Two values of a body are equal only in
        runs that reach the body. Their equality implies nothing about outer values and their sizes.
        """
        facts = self._scope.facts
        before = facts.get(old)
        self._mark_holder(new)
        if before is None or old is new or old.graph is not new.graph:
            return
        after = self._scope.infer(new)
        if after.same_as(before):
            return
        merged, equal_dims = _combined_facts(before, after)
        facts[new] = merged
        is_refined = _is_more_precise(merged, before)
        self._state.refinements += is_refined or _is_more_precise(merged, after)
        if is_refined:
            self._mark_readers(new)
        if new.graph is self._state.model.graph:
            for vague, dim in equal_dims:
                self._state.equate(vague, dim)

    def refresh(self) -> None:
        """Infer the outputs of nodes again if their inputs have more precise facts than before.

        More precise outputs are propagated to their readers. Edits record the affected nodes, so that the
        cost is zero if there are none.
        """
        while self._outdated and not self._state.budget.over:
            pending, self._outdated = list(self._outdated), {}
            for node in pending:
                if node.graph is not None:
                    self._infer_again(node)

    def _infer_again(self, node: ir.Node) -> None:
        facts = self._scope.facts
        before = {value: facts.pop(value) for value in node.outputs if value in facts}
        if (
            node.op_type != "If"
        ):  # branches have no inputs: they are inferred again with the values that they read
            self._scope.invalidate(inner for body in ir.bodies(node) for inner in ir.with_bodies(body))
        for value, old in before.items():
            new = self._scope.infer(value)
            merged, equal_dims = _combined_facts(old, new)
            if not _is_more_precise(merged, old):
                facts[value] = old
                continue
            facts[value] = merged
            self._state.refinements += 1
            for vague, dim in equal_dims:  # unknown dims of the new fact are fresh symbols
                if old.shape is not None and vague in old.shape and node.graph is self._state.model.graph:
                    self._state.equate(vague, dim)
            self._mark_readers(value)
            self._mark_holder(value)

    def _mark_readers(self, value: ir.Value) -> None:
        self._outdated.update(dict.fromkeys(ir.readers(value)))

    def _mark_holder(self, value: ir.Value) -> None:
        """Mark the node whose body returns ``value``, or the calls of the function that returns it."""
        graph = value.graph
        if graph is None or graph is self._state.model.graph or not value.is_graph_output():
            return
        found = self._state.calls(graph)
        holder = None if found is not None else self._state.holder(graph)
        self._outdated.update(dict.fromkeys(found[1] if found is not None else [holder] if holder else []))

    # reports

    @property
    def refinements(self) -> int:
        """The number of times that a known fact changed, or became more precise."""
        return self._state.refinements

    @property
    def failures(self) -> list[tuple[ir.Node, Exception]]:
        """Nodes that violate their operator's specification, with the exception raised."""
        return self._state.failures


def _vagueness(dim: Dim) -> int:
    """0 for a number, 1 for a declared symbol, 2 for an expression over declared symbols, 3 for others."""
    if isinstance(dim, int):
        return 0
    if dim.birth:
        return 3
    return 1 if isinstance(lone_atom(dim), Symbol) else 2


def _is_more_precise(fact: Fact, before: Fact) -> bool:
    """Whether ``fact`` about a tensor implies more than ``before``."""
    if before.container is not None:
        return False
    for now, then in ((fact.dtype, before.dtype), (fact.fill, before.fill)):
        if then is None and now is not None:
            return True
    for dims, known in ((fact.shape, before.shape), (fact.contents, before.contents)):
        if dims is not None and (
            known is None or any(_vagueness(a) < _vagueness(b) for a, b in zip(dims, known, strict=True))
        ):
            return True
    return False


def _combined_facts(before: Fact, after: Fact) -> tuple[Fact, list[tuple[Dim, Dim]]]:
    """Two facts about a value, combined; and pairs of a fresh symbol and the more precise dim it equals."""
    if before.container is not None or after.container is not None:
        return (after if before.type is None else before), []
    equal_dims: list[tuple[Dim, Dim]] = []

    def better(old: Dim, new: Dim) -> Dim:
        """The more precise of two equal dims; the old one if both are equally precise."""
        best, other = (new, old) if _vagueness(new) < _vagueness(old) else (old, new)
        if isinstance(other, SymDim) and other.birth:
            equal_dims.append((other, best))
        return best

    shape = after.shape
    if before.shape is not None and (after.shape is None or len(before.shape) == len(after.shape)):
        shape = tuple(map(better, before.shape, after.shape or before.shape))
    contents = after.contents
    if before.contents is not None and (contents is None or len(contents) == len(before.contents)):
        contents = tuple(map(better, before.contents, contents or before.contents))
    fill = before.fill if after.fill is None else after.fill
    return Fact(after.dtype or before.dtype, shape, contents, fill=fill), equal_dims
