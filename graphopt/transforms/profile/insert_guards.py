"""insert-guards: assert profile annotations by guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import ClassVar

import numpy as np

from graphopt import context, ir
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotation_of, assertion_of, guard_attributes, is_annotation
from graphopt.profile.value_profile import ANY, Dim, is_symbol
from graphopt.transforms.profile._compare_assertions import conflict, is_implied
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class InsertGuards(Pass):
    """Insert a guard after each annotated value, and remove the annotation: ``x → Guard(x)``.

    All uses of the value, except as a graph output, read the guard (``graphopt.profile::Guard``) instead.
    Other passes use its assertion as a fact, and fold shapes and Ifs. The result is correct only if each run
    exits at the first guard that does not hold. Contents that never varied become a constant.

    An annotation is removed without a guard if the value is unused, or if the facts imply or contradict the
    annotation. Symbols are shared by all guards; a symbol asserts nothing if its dims are known to be equal,
    or if it occurs once.

    No runtime implements the operator: only other passes and the insertion of bailouts use it.

    Modelled on ``InsertGuards`` of PyTorch's JIT.

    Attributes:
        pin: replace contents that never varied by constants.
    """

    pin: bool = True

    name: ClassVar[str] = "insert-guards"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Decide for all values first, because they share symbols; then change the model."""
        annotations = dict(_annotations(model))
        profiles = self._resolved(self._possible(annotations, cx), model, cx)
        changed = False
        for value, profile in reversed(profiles.items()):  # keeps the order of guards after one node
            changed |= self._guard(value, profile, cx)
        for value in annotations:
            cx.edit.remove_metadata(value, is_annotation)
        if changed:
            cx.invalidate("guard")

    def _possible(
        self, annotations: Mapping[ir.Value, ValueProfile], cx: Context
    ) -> dict[ir.Value, ValueProfile]:
        """The ``annotations`` of used values that the facts do not contradict."""
        found = {}
        for value, profile in annotations.items():
            if not ir.use_count(value):
                self._remark(value, "it is unused", cx)
            elif (reason := conflict(profile, value, cx)) is not None:
                self._refuse(value, reason, cx)
            else:
                found[value] = profile
        return found

    def _resolved(
        self, annotations: Mapping[ir.Value, ValueProfile], model: ir.Model, cx: Context
    ) -> dict[ir.Value, ValueProfile]:
        """The assertions: ``annotations`` that are not implied, with resolved symbols."""
        meanings = _resolve_symbols(annotations, model, cx)
        found = {}
        for value, profile in annotations.items():
            if profile.shape is not None:
                profile = replace(profile, shape=tuple(meanings.get(dim, dim) for dim in profile.shape))
            if (reason := conflict(profile, value, cx)) is not None:
                self._refuse(value, reason, cx)
            elif is_implied(profile, value, cx):
                self._remark(value, "the facts imply its annotation", cx)
            else:
                found[value] = profile
        return found

    def _guard(self, value: ir.Value, profile: ValueProfile, cx: Context) -> bool:
        """Insert a guard after ``value``; returns whether that was permitted."""
        name = value.name or "value"
        node = cx.edit.make_node(
            graphopt_operators.GUARD,
            [value],
            guard_attributes(profile),
            domain=graphopt_operators.GUARD_DOMAIN,
            name=f"{name}_guard",
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
            self._pin(value, output, profile, cx)
        cx.end_rewrite(action, node, [node])
        return True

    def _pin(self, value: ir.Value, output: ir.Value, profile: ValueProfile, cx: Context) -> None:
        """Replace ``output``, which guards ``value``, by a constant if the assertion fixes its contents."""
        node, dtype, sizes = output.producer(), cx.dtype(value), ir.all_ints(profile.shape)
        if profile.ints is None or sizes is None or dtype is None or node is None or node.graph is None:
            return
        if len(profile.ints) == prod(sizes) and cx.edit.supports_constant(node.graph, dtype):
            data = np.array(profile.ints, dtype.numpy()).reshape(sizes)
            cx.edit.replace(output, cx.edit.constant(node.graph, data, f"{value.name}_seen"))

    def _refuse(self, value: ir.Value, reason: str, cx: Context) -> None:
        cx.refuse(Refusal(self.name, _place(value), reason, value.name))

    def _remark(self, value: ir.Value, reason: str, cx: Context) -> None:
        cx.say(self.name, lambda: f"{value.name}: no guard, because {reason}")


def _annotations(model: ir.Model) -> Iterator[tuple[ir.Value, ValueProfile]]:
    for graph in ir.graphs_of(model):
        for value in ir.values_of(graph):
            if (profile := annotation_of(value)) is not None:
                yield value, profile


def _place(value: ir.Value) -> str:
    producer = value.producer()
    return value.name or "" if producer is None else ir.label(producer)


def _resolve_symbols(
    annotations: Mapping[ir.Value, ValueProfile], model: ir.Model, cx: Context
) -> dict[Dim, Dim]:
    """The replacement for each symbol of ``annotations``.

    A symbol becomes a size if one of its dims is known, and becomes unconstrained if all its dims are known
    to be equal. Otherwise it receives a name distinct from the names of the model's dims and of existing
    guards.
    """
    sites: dict[str, list[context.Dim | None]] = {}
    for value, profile in annotations.items():
        shape = cx.shape(value)
        for axis, dim in enumerate(profile.shape or ()):
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
    """The dim names of inputs and guards."""
    for value in model.graph.inputs:
        yield from (str(dim) for dim in value.shape or ())
    for node in graphopt_operators.guards_of(model):
        profile = assertion_of(node)
        yield from map(str, (profile and profile.shape) or ())
