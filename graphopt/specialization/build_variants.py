"""Build a general model and its specialized variants, each optimized separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field, replace

from graphopt import ir
from graphopt.errors import GraphoptError
from graphopt.instrument.report import Report
from graphopt.instrument.report.variants import VariantReport
from graphopt.ir.signature import Signature
from graphopt.profile import (
    FusionStrategy,
    Guard,
    Profile,
    Variant,
    branch_inputs,
    variants_of,
)
from graphopt.specialization.build_record import BuildRecord
from graphopt.specialization.profitability import Policy
from graphopt.specialization.shared_initializers import share_initializers
from graphopt.specialization.variant_branch import Branch
from graphopt.specialization.variant_records import VariantRecord, read_variants
from graphopt.util.lazy_dataclass import dataclass

#: Passes that a variant runs first, because its inputs may determine trip counts and branches.
FIRST = ("inline-functions", "unroll-loops")


@dataclass(frozen=True)
class Specialization:
    """Settings for the specialization of a model.

    Attributes:
        profile: a profile of the model.
        strategy: the number and kinds of variants.
        most: the maximum number of variants.
        single_file: for one model, keep all weights in the file itself; branches capture shared weights.
        pins: for one model, declare the input sizes of a branch to onnxruntime by a Reshape of each input.
    """

    profile: Profile
    strategy: FusionStrategy = field(default_factory=FusionStrategy)
    most: int | None = None
    single_file: bool = False
    pins: bool = False

    def branch(self, variant: Variant, model: ir.Model) -> Branch:
        """The branch of ``variant``, whose optimized model is ``model``."""
        pins = frozenset(variant.guard.inputs) if self.pins else frozenset()
        return Branch(variant.name, variant.guard, model, pins)


@dataclass(frozen=True)
class Specialized:
    """A model and its variants.

    Attributes:
        general: the model for all inputs.
        branches: the variants, in the order in which their guards are checked.
        plan: a record of each branch.
        report: the report of ``general`` and all variants.
        original: fingerprint of the original model.
        model: the versioned model; ``None`` for a bundle.
        build_record: the device, and the original's file.
    """

    general: ir.Model = field(repr=False)
    branches: list[Branch] = field(repr=False)
    plan: list[VariantRecord]
    report: Report
    original: str
    model: ir.Model | None = field(default=None, repr=False)
    build_record: BuildRecord = field(default_factory=BuildRecord, repr=False)


def requested_variants(original: ir.Model, request: Specialization, policy: Policy) -> list[Variant]:
    """The variants of ``original`` for its profile."""
    inputs = Signature.of(original).inputs
    return variants_of(
        request.profile,
        request.strategy,
        most=request.most,
        limits=policy.limits,
        optional=[port.name for port in inputs if port.role == "overridable" and policy.detects_absence],
        pinned=branch_inputs(original),
    )


def build(
    original: ir.Model,
    request: Specialization,
    variants: Iterable[Variant],
    optimized: tuple[ir.Model, Report],
    optimize: Callable[[Guard], tuple[ir.Model, Report]],
    policy: Policy,
    *,
    strict: bool = False,
) -> Specialized:
    """Build each of the ``variants`` of ``original``.

    Args:
        variants: the result of :func:`requested_variants`.
        optimized: the general model and its report.
        optimize: the optimized variant of a guard, and its report.
        policy: selects the variants that are kept.
        strict: fail if a variant fails; by default, it is dropped.
    """
    general, report = optimized
    branches, plan, reports = [], [], list[VariantReport]()
    made = Counter(record.name.partition("-")[0] for record in read_variants(original))
    before = ir.count_all_nodes(general)
    for variant in variants:
        kind, _, number = variant.name.partition("-")  # a specialized model may be specialized again
        variant = replace(variant, name=f"{kind}-{made[kind] + int(number)}")
        try:
            model, variant_report = optimize(variant.guard)
        except GraphoptError as failure:
            if strict:
                raise
            reports.append(VariantReport(variant, 0, before, str(failure)))
            continue
        gain = policy.assess(general, model, variant)
        nodes = ir.count_all_nodes(model)
        dropped = tuple(map(str, variant_report.dropped))
        kernels = variant_report.kernels
        reports.append(VariantReport(variant, nodes, before, gain.shortfall, dropped, gain.ratio, kernels))
        if gain.shortfall is None:
            branches.append(request.branch(variant, model))
            plan.append(VariantRecord(variant.name, variant.guard, variant.runs, nodes))
    report = report.having(variants=reports, profiled_runs=request.profile.runs)
    share_initializers([general, *(branch.model for branch in branches)])
    return Specialized(general, branches, plan, report, request.profile.model)
