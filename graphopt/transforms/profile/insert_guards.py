"""insert-guards: what was seen of values holds behind guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ops import dialects
from graphopt.passes.base import Pass
from graphopt.profile import Seen
from graphopt.profile.annotations import asserted, assertion, is_note, noted
from graphopt.profile.value_profile import ANY, Dim, is_symbol
from graphopt.transforms.profile._assertions import conflict, is_implied


@dataclass(frozen=True)
class InsertGuards(Pass):
    """Put a guard behind each value that bears a note of what was seen of it, and remove the note.

    All that read the value then read what the guard gives (``graphopt.profile::Guard``), of which facts
    know what is asserted: other passes fold shapes and Ifs by it. What is computed is right as long as runs
    leave the model where a guard does not hold. Graphs go on returning values themselves. If the contents
    never varied, a constant is read instead.

    A note goes without a guard where nothing reads the value, where it is known to be as noted, and where
    it can't be as noted. Symbols stand for what all guards see alike: those of dims that are known to be
    equal, or that stand alone, assert nothing.

    No runtime has the operator: it serves other passes, and what makes choices of guards.

    The seed is ``InsertGuards`` of PyTorch's JIT.

    Attributes:
        pin: let constants be read instead of contents that never varied.
    """

    pin: bool = True

    name: ClassVar[str] = "insert-guards"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Decide for all values at once, since symbols go together; then change the model."""
        notes = dict(_notes(model))
        wanted = self._resolved(self._possible(notes, cx), model, cx)
        changed = False
        for value, seen in reversed(wanted.items()):  # those behind one node keep their order
            changed |= self._guard(value, seen, cx)
        for value in notes:
            cx.edit.forget(value, is_note)
        if changed:
            cx.look_afresh("guard")

    def _possible(self, notes: Mapping[ir.Value, Seen], cx: Context) -> dict[ir.Value, Seen]:
        """Those of ``notes`` that can be true, of values that something reads."""
        found = {}
        for value, seen in notes.items():
            if not ir.use_count(value):
                self._remark(value, "nothing reads it", cx)
            elif (reason := conflict(seen, value, cx)) is not None:
                self._refuse(value, reason, cx)
            else:
                found[value] = seen
        return found

    def _resolved(self, notes: Mapping[ir.Value, Seen], model: ir.Model, cx: Context) -> dict[ir.Value, Seen]:
        """What to assert: of ``notes`` what is not known, with symbols that tell something."""
        meanings = _meanings(notes, model, cx)
        found = {}
        for value, seen in notes.items():
            if seen.shape is not None:
                seen = replace(seen, shape=tuple(meanings.get(dim, dim) for dim in seen.shape))
            if (reason := conflict(seen, value, cx)) is not None:
                self._refuse(value, reason, cx)
            elif is_implied(seen, value, cx):
                self._remark(value, "it is known to be as it was seen", cx)
            else:
                found[value] = seen
        return found

    def _guard(self, value: ir.Value, seen: Seen, cx: Context) -> bool:
        """Put a guard behind ``value``; tells whether that was permitted."""
        name = value.name or "value"
        node = cx.edit.make_node(
            dialects.GUARD, [value], assertion(seen), domain=dialects.GUARD_DOMAIN, name=f"{name}_guard"
        )
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            cx.edit.discard(node)
            return False
        cx.edit.interpose(value, node)
        cx.edit.import_domain(node)
        output = node.outputs[0]
        output.type = value.type
        producer = value.producer()
        cx.edit.note_origin([node], [] if producer is None else [producer], self.name)
        if self.pin:
            self._pin(value, output, seen, cx)
        cx.end_rewrite(action, node, [node])
        return True

    def _pin(self, value: ir.Value, output: ir.Value, seen: Seen, cx: Context) -> None:
        """Let the readers of ``output``, which guards ``value``, read its contents, if they are asserted."""
        node, dtype, sizes = output.producer(), cx.dtype(value), ir.all_ints(seen.shape)
        if seen.ints is None or sizes is None or dtype is None or node is None or node.graph is None:
            return
        if len(seen.ints) == prod(sizes) and cx.edit.takes_constant(node.graph, dtype):
            data = np.array(seen.ints, dtype.numpy()).reshape(sizes)
            cx.edit.replace(output, cx.edit.constant(node.graph, data, f"{value.name}_seen"))

    def _refuse(self, value: ir.Value, reason: str, cx: Context) -> None:
        cx.refuse(Refusal(self.name, _place(value), reason, value.name))

    def _remark(self, value: ir.Value, reason: str, cx: Context) -> None:
        cx.say(self.name, lambda: f"{value.name}: no guard, since {reason}")


def _notes(model: ir.Model) -> Iterator[tuple[ir.Value, Seen]]:
    for graph in ir.graphs_of(model):
        for value in ir.values_of(graph):
            if (seen := noted(value)) is not None:
                yield value, seen


def _place(value: ir.Value) -> str:
    producer = value.producer()
    return value.name or "" if producer is None else ir.label(producer)


def _meanings(notes: Mapping[ir.Value, Seen], model: ir.Model, cx: Context) -> dict[Dim, Dim]:
    """What to write for each symbol of ``notes``.

    A number if one of its dims is known; nothing in particular if they are all known to be equal; and else a
    name that is none of the model's dims, nor of guards that are there already.
    """
    sites: dict[str, list[object]] = {}
    for value, seen in notes.items():
        shape = cx.shape(value)
        for axis, dim in enumerate(seen.shape or ()):
            if is_symbol(dim):
                sites.setdefault(dim, []).append(None if shape is None else shape[axis])
    taken = set(_names(model)) if sites else set()
    found: dict[Dim, Dim] = {}
    for symbol, (first, *rest) in sites.items():
        numbers = [size for size in (first, *rest) if isinstance(size, int)]
        if numbers:
            found[symbol] = numbers[0]
        elif all(first is not None and size is not None and cx.facts.dim_equal(first, size) for size in rest):
            found[symbol] = ANY
        else:
            found[symbol] = name = ir.fresh_dim(symbol, taken)
            taken.add(name)
    return found


def _names(model: ir.Model) -> Iterator[str]:
    """What dims of inputs, and of guards, are called."""
    for value in model.graph.inputs:
        yield from (str(dim) for dim in value.shape or ())
    for node in dialects.guards_of(model):
        seen = asserted(node)
        yield from map(str, (seen and seen.shape) or ())
