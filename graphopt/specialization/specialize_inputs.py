"""Apply a guard to a model's inputs: declare them accordingly, and generate inputs that satisfy it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.context import context_for
from graphopt.inputs.feeds import InputOptions
from graphopt.model_arguments import copy
from graphopt.profile import Guard, Profile, ValueProfile
from graphopt.profile.annotations import annotate, annotate_gradients
from graphopt.transforms.profile.specialize_types import DECLARED, SpecializeTypes
from graphopt.util.ort_array_conversion import numpy_type


def specialize_inputs(model: ir.Model, guard: Guard, profile: Profile | None = None) -> ir.Model:
    """A copy of ``model`` whose inputs are declared as ``guard`` assumes; assumed contents become constants.

    Optional inputs that the guard assumes to be absent are replaced by their defaults. Intermediate values
    are annotated with their profile in ``profile``.
    """
    found = annotate_inputs(model, guard, profile)
    with context_for(found) as cx:
        SpecializeTypes(fold=False).run(found, cx)  # later passes fold
        for value in found.graph.inputs:
            cx.edit.remove_metadata(value, lambda key: key == DECLARED)  # the guard checks the declared dims
    return found


def annotate_inputs(model: ir.Model, guard: Guard, profile: Profile | None = None) -> ir.Model:
    """A copy of ``model`` with the assumptions of ``guard`` as annotations, for ``specialize-types``.

    Args:
        model: the model.
        guard: the assumptions. Inputs that the guard assumes to be absent are replaced by their defaults.
        profile: also annotate its intermediate values, which the guard does not check, and the inputs that
            require a gradient.
    """
    found = copy(model)
    inputs = {value.name for value in found.graph.inputs}
    values = {} if profile is None else profile.values
    annotate(
        found, {name: value for name, value in values.items() if name not in inputs} | dict(guard.inputs)
    )
    annotate_gradients(found, {} if profile is None else profile.requires_grad)
    with context_for(found) as cx:
        for value in found.graph.inputs:
            if value.name in guard.absent and value.const_value is not None and ir.is_read(value):
                cx.edit.replace(
                    value, cx.edit.constant(found.graph, value.const_value, f"{value.name}_default")
                )
    return found


def profiled_inputs(guard: Guard, profile: Profile, inputs: InputOptions) -> InputOptions | None:
    """``inputs`` with the shapes of the most frequent runs that satisfy ``guard``, or ``None``."""
    for pattern in sorted(profile.patterns, key=lambda pattern: -pattern.count):
        if guard.admits(pattern.inputs):
            return _inputs_for_guard(guard, pattern.inputs, inputs)
    return None


def static_inputs(guard: Guard, inputs: InputOptions) -> InputOptions | None:
    """``inputs`` with the shapes and contents that ``guard`` fixes; ``None`` unless all shapes are static."""
    if not all(expected.is_static and expected.always for expected in guard.inputs.values()):
        return None
    return replace(_inputs_for_guard(guard, guard.inputs, inputs), profiled=True)


def _inputs_for_guard(guard: Guard, values: Mapping[str, ValueProfile], inputs: InputOptions) -> InputOptions:
    """``inputs`` with the contents that ``guard`` fixes, and the shapes of the other ``values``."""
    contents = {name: _contents(expected) for name, expected in guard.inputs.items()}
    arrays = {name: array for name, array in contents.items() if array is not None}
    shapes = {
        name: tuple(dim for dim in expected.shape if isinstance(dim, int))
        for name, expected in values.items()
        if expected.shape is not None and name not in arrays
    }
    return replace(inputs, shapes=shapes, files=(), arrays=arrays)


def _contents(expected: ValueProfile) -> np.ndarray[Any, Any] | None:
    """The assumed contents of an input, or ``None``."""
    dtype = numpy_type(expected.type)
    if expected.ints is None or dtype is None or expected.shape is None:
        return None
    return np.array(expected.ints, dtype).reshape([dim for dim in expected.shape if isinstance(dim, int)])
