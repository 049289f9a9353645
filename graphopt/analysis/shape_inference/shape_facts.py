"""Shape facts: what is known of a model's values without running it.

Facts are a table beside the model. They are computed by need from a value's producer and kept;
the model itself is never written to, and what it declares about values other than its inputs is
never believed. Sources, in this order: the rules of
:mod:`graphopt.analysis.shape_inference.rules`, then onnx's own inference, node by node. A node that neither
can tell about is unknown, which is not an error.

A fact holds for every run that onnxruntime completes, whatever the sizes that the symbols stand
for, 0 included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.engine import Inference, declared_fact
from graphopt.analysis.shape_inference.facts import Contents, Fact, ShapeTuple
from graphopt.analysis.shape_inference.state import World
from graphopt.analysis.symbolic import Bound, Dim, SymDim, ceildiv, equal, known_nonzero, product
from graphopt.util.budget import Budget

__all__ = ["ShapeFacts"]


class ShapeFacts:
    """Facts about the values of one model.

    Args:
        model: never changed here. It may be edited meanwhile: facts of values that are still there
            stay valid, since an edit never changes what a value holds.
        constant: the tensor that a value always holds, or None.
        version: the opset version of a node's domain where it stands.
        ranges: first and last size of named dims that the user vouches for, ``{"seq": (1, 512)}``;
            ``math.inf`` for no end.
        budget: the time that may be spent; what is asked for later is unknown.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        constant: Callable[[ir.Value], ir.TensorProtocol | None],
        version: Callable[[ir.Node], int],
        ranges: Mapping[str, tuple[Bound, Bound]] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._world = World(model, constant, version, ranges or {}, budget or Budget())
        self._scope = Inference(self._world)
        self._outdated: dict[ir.Node, None] = {}

    @classmethod
    def of(cls, edit: ir.Editor, ranges: Mapping[str, tuple[Bound, Bound]], budget: Budget) -> ShapeFacts:
        """Facts about the model of ``edit``, told of its edits and asked by it what is declared truly."""
        facts = cls(
            edit.model,
            constant=ir.constant_of,
            version=edit.scopes.version,
            ranges=ranges,
            budget=budget,
        )
        edit.listeners.append(facts)
        edit.declared_truly = facts.agrees
        return facts

    def anew(self, edit: ir.Editor) -> ShapeFacts:
        """What takes the place of these facts when the model is another: same ranges, same budget."""
        edit.listeners.remove(self)
        return ShapeFacts.of(edit, self._world.ranges, self._world.budget)

    # queries

    def shape(self, value: ir.Value) -> ShapeTuple | None:
        """The dims of a tensor: ints, or expressions over symbols; None if the rank is unknown.

        An unknown dim is a symbol of its own, so that it is equal to itself alone.
        """
        return self._scope.need(value).shape

    def rank(self, value: ir.Value) -> int | None:
        """The number of dims."""
        shape = self._scope.need(value).shape
        return None if shape is None else len(shape)

    def is_filled(self, value: ir.Value) -> bool:
        """Whether ``value`` is known to have elements."""
        shape = self.shape(value)
        return shape is not None and all(map(known_nonzero, shape))

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a tensor; None if it is unknown or no tensor."""
        dtype = self._scope.need(value).dtype
        return None if dtype == ir.DataType.UNDEFINED else dtype

    def type(self, value: ir.Value) -> ir.TypeProtocol | None:
        """The tensor, sequence or optional type, where it is known down to the element type."""
        return self._scope.need(value).type

    def known_ints(self, value: ir.Value) -> Contents | None:
        """The elements of a small integer or boolean tensor (0 and 1) of rank 0 or 1.

        Entries may be expressions over symbols. None if they are not known, or more than 256.
        """
        fact = self._scope.need(value)
        return fact.contents if fact.shape is not None and len(fact.shape) <= 1 else None

    def fill(self, value: ir.Value) -> np.generic | None:
        """The number that every element of ``value`` is, bit by bit, whatever its shape; else ``None``."""
        return self._scope.fill(value)

    def nbytes(self, value: ir.Value) -> Dim | None:
        """The size of the elements in bytes, perhaps symbolic; None where it is not known."""
        fact = self._scope.need(value)
        if fact.shape is None or fact.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
            return None
        return ceildiv(product(fact.shape) * fact.dtype.bitwidth, 8)

    def dim_equal(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are provably equal."""
        return a == b or equal(self._world.resolved(a), self._world.resolved(b))

    def shape_equal(self, x: ir.Value, y: ir.Value) -> bool:
        """Whether two tensors provably have the same shape."""
        a, b = self.shape(x), self.shape(y)
        if a is None or b is None or len(a) != len(b):
            return False
        return all(map(self.dim_equal, a, b))

    # the model and its edits

    def agrees(self, value: ir.Value) -> bool:
        """Whether the numbers in the declared shape of ``value`` are known to be right."""
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

    def infer_all(self) -> None:
        """Compute the facts of every value of the model, its bodies and its functions."""
        model = self._world.model
        self._scope.infer_graphs([model.graph, *(function.graph for function in model.functions.values())])

    def presume(self, value: ir.Value, like: ir.Value, *, sliced: bool = False) -> None:
        """Assume the type and shape of ``like`` for ``value``, whose own are unknown.

        Args:
            sliced: those of one slice of ``like`` along its first axis instead.
        """
        fact = self._scope.need(like)
        shape = fact.shape[1:] if sliced and fact.shape is not None else fact.shape
        self._scope.settle(value, Fact(fact.dtype, shape, container=fact.container, element=fact.element))

    def presume_declared(self, value: ir.Value) -> None:
        """Assume the declared type of ``value``, if nothing else is known."""
        if value.type is not None and value not in self._scope.facts:
            self._scope.settle(value, declared_fact(value.type))

    def presume_equal(self, dim: Dim, other: Dim) -> None:
        """Take it that ``dim``, a single symbol, is always equal to ``other``.

        Nothing follows for facts that were computed before, but for their own dims.
        """
        self._world.equate(dim, other)

    def resolved(self, dim: Dim) -> Dim:
        """``dim`` with all in it that is known to be equal to something else put in."""
        return self._world.resolved(dim)

    def settle(self, value: ir.Value, fact: Fact) -> None:
        """Take ``fact`` for what is true of ``value``, an input."""
        self._scope.settle(value, fact)

    def forget(self, graph: ir.Graph) -> None:
        """Forget what is known inside ``graph``: a function called from new places, or a new body."""
        self._world.forget_calls()
        self._scope.forget(ir.with_bodies(graph))

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Take over what is known of ``old``, which ``new`` now stands for and is equal to.

        Where both are known as well, the names of ``old`` stay. Two values of a body are equal in
        runs that get there: that tells nothing of values around it, nor of sizes that are theirs.
        """
        facts = self._scope.facts
        before = facts.get(old)
        self._outdate_holder(new)
        if before is None or old is new or old.graph is not new.graph:
            return
        after = self._scope.need(new)
        if after.same_as(before):
            return
        merged, equal_dims = _merged(before, after)
        facts[new] = merged
        if _says_more(merged, before):
            self._outdate_readers(new)
        if new.graph is self._world.model.graph:
            for vague, dim in equal_dims:
                self._world.equate(vague, dim)

    def refresh(self) -> None:
        """Infer anew what nodes give whose inputs are better known by now than when they were inferred.

        Where that says more, the same is done for what reads it; what was known stays. Edits make the list
        of such nodes, so this costs nothing where they taught nothing new.
        """
        while self._outdated and not self._world.budget.over:
            pending, self._outdated = list(self._outdated), {}
            for node in pending:
                if node.graph is not None:
                    self._infer_again(node)

    def _infer_again(self, node: ir.Node) -> None:
        facts = self._scope.facts
        before = {value: facts.pop(value) for value in node.outputs if value in facts}
        if node.op_type != "If":  # whose branches have no inputs: what they read makes them be inferred again
            self._scope.forget(inner for body in ir.bodies(node) for inner in ir.with_bodies(body))
        for value, old in before.items():
            new = self._scope.need(value)
            merged, equal_dims = _merged(old, new)
            if not _says_more(merged, old):
                facts[value] = old
                continue
            facts[value] = merged
            for vague, dim in equal_dims:  # what is unknown of the new fact has just been made up
                if old.shape is not None and vague in old.shape and node.graph is self._world.model.graph:
                    self._world.equate(vague, dim)
            self._outdate_readers(value)
            self._outdate_holder(value)

    def _outdate_readers(self, value: ir.Value) -> None:
        self._outdated.update(dict.fromkeys(ir.readers(value)))

    def _outdate_holder(self, value: ir.Value) -> None:
        """Look again at the node whose body returns ``value``, or at the calls of the function that does."""
        graph = value.graph
        if graph is None or graph is self._world.model.graph or not value.is_graph_output():
            return
        found = self._world.calls(graph)
        holder = None if found is not None else self._world.holder(graph)
        self._outdated.update(dict.fromkeys(found[1] if found is not None else [holder] if holder else []))

    # reports

    @property
    def failures(self) -> list[tuple[ir.Node, Exception]]:
        """Nodes that break their operator's specification, with what went wrong; they are unknown."""
        return self._world.failures


def _vagueness(dim: Dim) -> int:
    """0 for a number, 1 for a name of the model's own, 2 for an expression over such, 3 for anything else."""
    if isinstance(dim, int):
        return 0
    if dim.birth:
        return 3
    return 2 if dim.symbol is None else 1


def _says_more(fact: Fact, before: Fact) -> bool:
    """Whether ``fact`` says something of a tensor that ``before`` did not."""
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


def _merged(before: Fact, after: Fact) -> tuple[Fact, list[tuple[Dim, Dim]]]:
    """What both facts about one value tell, and sizes without a name in them with what they are equal to."""
    if before.container is not None or after.container is not None:
        return (after if before.type is None else before), []
    equal_dims: list[tuple[Dim, Dim]] = []

    def better(old: Dim, new: Dim) -> Dim:
        """The better known of two equal dims, the old one in doubt."""
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
