"""A general model and its specialized variants, each optimized by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.errors import GraphoptError
from graphopt.instrument.report import Report
from graphopt.instrument.variants import VariantReport
from graphopt.ir.signature import Signature
from graphopt.profile import FusionStrategy, Guard, Profile, branch_inputs, check_profile, variants_of
from graphopt.specialization.branches import Branch, VariantRecord
from graphopt.specialization.profitability import Policy
from graphopt.specialization.shared_initializers import share_initializers
from graphopt.specialization.specialize_inputs import specialize_inputs

#: Passes that a variant runs first: what is known of its inputs opens functions and loops.
FIRST = ("inline-functions", "unroll-loops")

#: Optimizes a model, running the named passes before all others. A guard is that which the model relies on,
#: beside the original.
Optimize = Callable[[ir.Model, tuple[str, ...], Guard | None], tuple[ir.Model, Report]]


@dataclass(frozen=True)
class Specialization:
    """How to specialize a model.

    Attributes:
        profile: what was seen in runs of it.
        strategy: how many variants are called for, and how closely each keeps to what was seen.
        most: make no more than that.
        single_file: of one model: all weights in the file itself, and read from outside of the branches.
        pins: of one model: variants tell onnxruntime the sizes of their inputs, by a Reshape of each.
    """

    profile: Profile
    strategy: FusionStrategy = field(default_factory=FusionStrategy)
    most: int | None = None
    single_file: bool = False
    pins: bool = False


@dataclass(frozen=True)
class Specialized:
    """A model and its variants.

    Attributes:
        general: right for all inputs.
        branches: right where their guards hold, in the order in which they are to be asked.
        plan: what there is to tell of each branch.
        report: about ``general``, and about all variants.
        original: fingerprint of the model that all were made of.
        model: all in one; ``None`` if they are for a bundle.
    """

    general: ir.Model = field(repr=False)
    branches: list[Branch] = field(repr=False)
    plan: list[VariantRecord]
    report: Report
    original: str
    model: ir.Model | None = field(default=None, repr=False)


def build(
    original: ir.Model,
    how: Specialization,
    optimize: Optimize,
    policy: Policy,
    *,
    strict: bool = False,
) -> Specialized:
    """Optimize ``original`` as it is, and once for each variant that its profile calls for.

    Args:
        policy: what the variants are for.
        strict: a variant that fails is an error; by default it is left out.

    Raises:
        UsageError: the profile is of another model, or speaks of inputs in another way than it does.
    """
    check_profile(how.profile, original)
    signature = Signature.of(original)
    general, report = optimize(original, (), None)
    optional = [port.name for port in signature.inputs if port.role == "overridable" and policy.sees_absence]
    variants = variants_of(
        how.profile,
        how.strategy,
        most=how.most,
        limits=policy.limits,
        optional=optional,
        pinned=branch_inputs(original),
    )
    branches, plan = [], []
    before = ir.count_all_nodes(general)
    for variant in variants:
        try:
            model, told = optimize(specialize_inputs(original, variant.guard), FIRST, variant.guard)
        except GraphoptError as failure:
            if strict:
                raise
            report.variants.append(VariantReport(variant, 0, before, str(failure)))
            continue
        reason = policy.left_out(general, model, variant)
        nodes = ir.count_all_nodes(model)
        dropped = tuple(map(str, told.dropped))
        report.variants.append(VariantReport(variant, nodes, before, reason, dropped))
        if reason is None:
            pins = frozenset(variant.guard.inputs) if how.pins else frozenset()
            branches.append(Branch(variant.name, variant.guard, model, pins))
            plan.append(VariantRecord(variant.name, variant.guard, variant.runs, nodes))
    report.profiled_runs = how.profile.runs
    share_initializers([general, *(branch.model for branch in branches)])
    return Specialized(general, branches, plan, report, how.profile.model)
