"""Combine a profile with the user's guarantees about sizes, ``--dim`` and ``--dim-range``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.inputs.dim_bindings import derived_sizes
from graphopt.inputs.dim_guarantees import apply_dim_guarantees, relate_dims, resolve_ranges
from graphopt.ir.signature import Signature
from graphopt.model_arguments import copy
from graphopt.profile import Pattern, Profile
from graphopt.util.dim_expressions import is_expression
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.parse_values import Range
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class Restricted:
    """A model with fixed dims, and the profiled runs that comply with all guarantees.

    Attributes:
        model: the model, with the guaranteed sizes declared.
        profile: the runs that comply, as a profile of ``model``.
        ranges: the guaranteed ranges, by the names of dims in shape facts.
        remarks: the number of runs that do not comply.
    """

    model: ir.Model
    profile: Profile
    ranges: Mapping[str, Range]
    remarks: tuple[str, ...] = ()


def restrict(
    model: ir.Model,
    profile: Profile,
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range],
    relations: Mapping[str, str],
) -> Restricted:
    """Declare ``sizes`` and ``relations`` in a copy of ``model``; keep the profiled runs with such sizes.

    Raises:
        UsageError: no run complies; or a guarantee does not fit the model (:func:`apply_dim_guarantees`).
    """
    if not sizes and not ranges and not relations:
        return Restricted(model, profile, {})
    fixed = copy(model)
    relate_dims(fixed, relations)
    limits = apply_dim_guarantees(fixed, sizes, ranges)
    signature = Signature.of(fixed)
    kept = tuple(pattern for pattern in profile.patterns if _complies(pattern, signature, limits))
    if profile.patterns and not kept:
        given = [*(f"{name}={size}" for name, size in sizes.items()), *ranges]
        raise UsageError(
            f"no profiled run complies with the sizes given for {', '.join(given)}",
            hint="graphopt profile records runs of these sizes",
        )
    found = replace(profile, model=ir.fingerprint(fixed, names=True), patterns=kept)
    lost = profile.runs - found.runs
    remarks = (f"{lost} of {counted(profile.runs, 'profiled run')} ignored: other sizes",) if lost else ()
    return Restricted(fixed, found, limits, remarks)


def ranges_of(variant: ir.Model, ranges: Mapping[str, Range]) -> Mapping[str, Range]:
    """The ``ranges`` of dims that are still dynamic in ``variant``."""
    return resolve_ranges(variant, ranges, strict=False)


def _complies(pattern: Pattern, signature: Signature, ranges: Mapping[str, Range]) -> bool:
    """Whether the shapes of ``pattern`` fit the declared dims, and their sizes are in ``ranges``."""
    sizes: dict[str, int] = {}
    for port in signature.inputs:
        observed = pattern.inputs.get(port.name)
        if observed is None or observed.shape is None or port.dims == ():
            continue
        if not port.accepts(observed.shape):
            return False
        for dim, size in zip(port.named_dims, observed.shape, strict=False):
            first, last = ranges.get(str(dim), (0, None))
            if isinstance(size, int):
                sizes[str(dim)] = size
                if not first <= size <= (math.inf if last is None else last):
                    return False
    return all(sizes[dim] == size for dim, size in derived_sizes(sizes, _free(sizes)).items())


def _free(sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of dims that are no expressions over others."""
    return {name: size for name, size in sizes.items() if not is_expression(name, sizes)}
