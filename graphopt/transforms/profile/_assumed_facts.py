"""Facts about a model if all of its profile annotations hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from graphopt import ir
from graphopt.analysis.symbolic import Dim, symbols
from graphopt.context import Context, context_for
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.transforms.profile.eliminate_guards import EliminateGuards
from graphopt.transforms.profile.insert_guards import InsertGuards
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class AssumedFacts:
    """Facts about a model, and stronger facts about a copy with a guard after each annotated value.

    Attributes:
        cx: the context of the model.
        assumed: the context of the copy.
        copies: for each value of the model, the value that its readers in the copy read.
        guarded: the values with a guard in the copy.
        names: the symbols that guards have introduced.
    """

    cx: Context
    assumed: Context
    copies: Mapping[ir.Value, ir.Value]
    guarded: frozenset[ir.Value]
    names: frozenset[str]

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dims of ``value`` if all annotations hold."""
        copied = self.copies.get(value)
        return self.cx.shape(value) if copied is None else self.assumed.shape(copied)

    def is_sharper(self, value: ir.Value) -> bool:
        """Whether the annotations imply additional facts about the dims or contents of ``value``."""
        copied = self.copies.get(value)
        if copied is None:
            return False
        pairs = (
            (self.cx.shape(value), self.assumed.shape(copied)),
            (self.cx.known_ints(value), self.assumed.known_ints(copied)),
        )
        return any(self._is_sharper(plain, assumed) for plain, assumed in pairs)

    def _is_sharper(self, plain: Sequence[Dim] | None, assumed: Sequence[Dim] | None) -> bool:
        if assumed is None:
            return False
        if plain is None:
            return True
        return any(
            dim != known and (isinstance(dim, int) or not self.names.isdisjoint(symbols(dim)))
            for known, dim in zip(plain, assumed, strict=True)
        )


@contextlib.contextmanager
def assumed_facts(cx: Context) -> Iterator[AssumedFacts | None]:
    """The facts about the model of ``cx``; ``None`` if the annotations imply no additional facts."""
    model, copied = cx.model, copy(cx.model)
    copies = {
        value: other
        for graph, twin in zip(ir.graphs_of(model), ir.graphs_of(copied), strict=True)
        for value, other in zip(ir.values_of(graph), ir.values_of(twin), strict=True)
    }
    before = set(graphopt_operators.guards_of(copied))
    with context_for(copied, cx.options) as assumed:
        InsertGuards(pin=False).run(copied, assumed)
        EliminateGuards().run(copied, assumed)  # guards that follow from earlier ones
        guards = {
            node.inputs[0]: node.outputs[0]
            for node in graphopt_operators.guards_of(copied)
            if node not in before and node.inputs[0] is not None
        }
        if not guards:
            yield None
            return
        names = frozenset(
            name
            for value, output in guards.items()
            for dim in assumed.shape(output) or ()
            if dim not in (assumed.shape(value) or ())
            for name in symbols(dim)
        )
        guarded = frozenset(value for value, other in copies.items() if other in guards)
        read = {value: guards.get(other, other) for value, other in copies.items()}
        yield AssumedFacts(cx, assumed, read, guarded, names)
