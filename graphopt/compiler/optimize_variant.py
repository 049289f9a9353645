"""Optimize a variant for the inputs that satisfy a guard, and compare it with its original."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import Result, optimized

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.profile import Guard


def optimize_variant(
    env: Environment,
    candidate: ir.Model,
    original: ir.Model,
    guard: Guard,
    inputs: InputOptions,
    *,
    by_pass: bool,
    first: tuple[str, ...] | None = None,
) -> Result:
    """Optimize ``candidate``, the variant of ``original`` for ``guard``, and compare both.

    Args:
        inputs: options of inputs that satisfy ``guard``, if it fixes all shapes.
        by_pass: whether a pass specializes annotated inputs.
        first: passes that run first; by default those of :mod:`graphopt.specialization.build_variants`.
    """
    from graphopt.specialization.build_variants import FIRST
    from graphopt.specialization.specialize_inputs import static_inputs

    fixed = static_inputs(guard, inputs)
    return optimized(
        env,
        candidate,
        pre_passes=(*(FIRST if first is None else first), *env.options["pre_passes"]),
        inputs=fixed,
        reference=_reference(original, guard, is_static=fixed is not None, by_pass=by_pass),
    )


def _reference(original: ir.Model, guard: Guard, *, is_static: bool, by_pass: bool) -> ir.Model | None:
    """The model to compare a variant with; ``None`` if that is the variant before its optimization.

    A variant that a pass specializes has the declarations of the original, so that inputs generated for it
    need not satisfy ``guard``; inputs generated for the reference satisfy it. Verification also feeds inputs
    that have a default. A reference without the inputs that the guard assumes to be absent ignores such
    feeds.
    """
    from graphopt.specialization.specialize_inputs import specialize_inputs

    if is_static and not guard.absent:
        return original
    return specialize_inputs(original, guard) if by_pass else None
