"""A model and its variants as one, checked on inputs that each guard lets through, and on all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphopt import ir
from graphopt.errors import UnsupportedModel, VerificationFailed
from graphopt.inputs.feeds import InputOptions
from graphopt.numerics import Numerics
from graphopt.profile import Profile
from graphopt.specialize.build import Specialization, Specialized
from graphopt.specialize.emit_model import emit_model, lift_shared_weights
from graphopt.specialize.guard_inputs import profiled_inputs
from graphopt.specialize.written_variants import write_variants
from graphopt.verification.verifier import Oracle

#: Makes the judge of what becomes of the original, fed as told.
Judge = Callable[[InputOptions], Oracle]


def whole(found: Specialized, how: Specialization) -> ir.Model:
    """One model; the general one, if there are no variants.

    Raises:
        UnsupportedModel: the model can't be put into a branch.
    """
    if not found.branches:
        return found.general
    model = emit_model(found.general, found.branches)
    if how.single_file:
        lift_shared_weights(model)
    ir.build_in(model, [found.general, *(branch.model for branch in found.branches)])
    write_variants(model, found.plan)
    return model


def check(
    model: ir.Model,
    found: Specialized,
    profile: Profile,
    judge: Judge,
    inputs: InputOptions,
    numerics: Numerics,
) -> None:
    """Compare ``model`` with the original; the report holds the verdict on inputs of all kinds.

    Raises:
        VerificationFailed: they differ.
    """
    given = [(branch.name, profiled_inputs(branch.guard, profile, inputs)) for branch in found.branches]
    for name, told in (*given, ("", inputs)):
        if told is None:
            continue
        with judge(told) as oracle:
            verdict = oracle.verify(model, numerics=numerics)
        if not verdict.ok:
            where = f" where the guard of {name} holds" if name else ""
            raise VerificationFailed(f"the model with variants is not the same{where}: {verdict.summary()}")
        found.report.verdict = verdict


def joined(
    found: Specialized,
    how: Specialization,
    judge: Judge | None,
    inputs: InputOptions,
    numerics: Numerics,
    *,
    strict: bool = False,
) -> ir.Model:
    """One model, checked by ``judge`` if there is one; without variants, and saying why, if that fails.

    Raises:
        UnsupportedModel, VerificationFailed: ``strict``, and there can be no such model, or it is wrong.
    """
    try:
        model = whole(found, how)
        if judge is not None and found.branches:
            check(model, found, how.profile, judge, inputs, numerics)
    except (UnsupportedModel, VerificationFailed) as failure:
        if strict:
            raise
        found.report.variants[:] = [
            replace(told, left_out=told.left_out or failure.message) for told in found.report.variants
        ]
        found.branches.clear()
        found.plan.clear()
        return found.general
    return model
