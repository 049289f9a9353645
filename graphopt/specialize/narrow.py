"""A model for inputs that a guard lets through, and for no others."""

from __future__ import annotations

from graphopt import ir
from graphopt.driver import context_for, copy
from graphopt.profile import Guard
from graphopt.profile.notes import note
from graphopt.transforms.profile.specialize_types import SpecializeTypes


def narrowed(model: ir.Model, guard: Guard) -> ir.Model:
    """A copy of ``model`` that declares what ``guard`` asks of inputs, and reads contents as constants.

    Inputs with a default that are assumed not to be fed can't be fed any more: they are constants.
    """
    found = copy(model)
    note(found, guard.inputs)
    with context_for(found) as cx:
        SpecializeTypes().run(found, cx)
        for value in found.graph.inputs:
            if value.name in guard.absent and value.const_value is not None and ir.is_read(value):
                cx.edit.replace(
                    value, cx.edit.constant(found.graph, value.const_value, f"{value.name}_default")
                )
    return found
