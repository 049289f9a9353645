"""One run of a pipeline over one model: its configuration, the checks of the result, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Unpack

from graphopt import config, ir
from graphopt.context import Action, Context, Options, context_for
from graphopt.context.drop_contradicted_shapes import drop_contradicted_shapes
from graphopt.custom_rules import check_applied, checked_rules, rules_by_place
from graphopt.errors import (
    MEMORY_HINT,
    GraphoptError,
    InvalidModel,
    ResourceLimit,
    RuntimeFailure,
    SystemExhausted,
    UsageError,
    VerificationFailed,
    exhausted,
)
from graphopt.instrument.model_summary import Interface
from graphopt.instrument.report import Report
from graphopt.instrument.report.builder import ReportBuilder
from graphopt.instrument.rewrite_stats import Stats
from graphopt.ir.signature import diff
from graphopt.make_pass_options import inputs_within_ranges, make_options, vouch
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.optimize_options import OptimizeOptions
from graphopt.ort.devices import target_device
from graphopt.passes.base import FUSED_OPERATORS, NATIVE_GROUPS
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import History
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import make_pipeline, own_passes, registry
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.option_table import pick_options

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.rewrite.fused_operators import Fused
    from graphopt.rewrite.missed_fusions import Missed
    from graphopt.verification.verdict import Verdict
    from graphopt.verification.verifier import Verifier


@dataclass(frozen=True)
class Attempt:
    """A run of a pipeline: its passes, the verifier of its result, and its observers.

    Fields without a description are options of :func:`graphopt.optimize`.

    Attributes:
        pipeline: the passes.
        options: limits that apply to every pass.
        seed: seed of generated inputs.
        verifier: compares results with the original; required if ``verify`` is set.
        gate: called before each rewrite, unless ``stop_after`` is given.
        libraries: returns the operator libraries for a result; the result is compared with and without them.
        check: a further check of a result, which raises VerificationFailed.
        redefined: remarks about changes of the model by :meth:`Pass.redefine`.
    """

    pipeline: Pipeline
    options: Options
    inputs: InputOptions | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    dim_ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    dim_relations: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    verifier: Verifier | None = None
    verify: bool = False
    require_verified: bool = False
    validate_each: bool = False
    verify_each: bool = False
    stop_after: int | None = None
    weigh_each: bool = False
    instruments: Sequence[PassInstrumentation] = ()
    gate: Callable[[Action], bool] | None = None
    libraries: Callable[[ir.Model], Sequence[str]] | None = None
    check: Callable[[ir.Model], object] | None = None
    redefined: Sequence[str] = ()

    @property
    def declares_dims(self) -> bool:
        """Whether :meth:`on` changes the declarations of the model."""
        return bool(self.dims or self.dim_relations)

    @property
    def changes_model(self) -> bool:
        """Whether :meth:`on` may have changed the model."""
        return bool(self.declares_dims or self.dim_ranges or self.redefined)

    def on(self, model: ir.Model) -> Attempt:
        """Adapt this attempt to ``model``, and change ``model`` in place: fix dims, and redefine its results.

        Raises:
            UsageError: an option names a dim that no input has, or whose size is already fixed to another
                number; or ``share_buffers`` names a missing input or output.
            VerificationFailed: sharing the buffers is not safe in ``model`` itself.
        """
        pipeline, options, inputs = self.pipeline, self.options, self.inputs
        if self.dims or self.dim_ranges or self.dim_relations:
            options = vouch(model, self.dims, self.dim_ranges, self.dim_relations, options)
            with context_for(model, options) as cx:
                drop_contradicted_shapes(cx)
            inputs = inputs_within_ranges(inputs, options, self.seed, fixed=self.declares_dims)
        if options.share_buffers:
            check = make_pipeline("check-aliasing")
            with context_for(model, options) as cx:
                check.run(model, cx)
            pipeline = Pipeline((*pipeline.steps, *check.steps))
        if graphopt_operators.has_groups(model):
            pipeline = Pipeline((*pipeline.steps, *make_pipeline("rename-groups").steps))
        redefined = self.redefine(model)
        return replace(self, pipeline=pipeline, options=options, inputs=inputs, redefined=redefined)

    def redefine(self, model: ir.Model) -> list[str]:
        """Change ``model`` in place to the model that defines correct results; returns remarks.

        Raises:
            UsageError: an option of a pass does not fit the model.
        """
        passes = [step for step in self.pipeline.passes() if step.name not in self.options.skip]
        return [remark for step in passes for remark in step.redefine(model)]

    def entered(self, stage: str, done: float | None = None) -> None:
        """Report a stage and its completed fraction, if known, to the instruments."""
        for watcher in self.instruments:
            watcher.entered(stage) if done is None else watcher.entered(stage, done)

    def run(self, model: ir.Model) -> Report:
        """Optimize ``model`` in place.

        Raises:
            PassFailed: a pass raised an error, or does not terminate.
            VerificationFailed: the result computes different values, has a different signature, or is
                invalid.
            NotFused: a scope of ``options.strict_fusion`` did not become one fused operator.
            RuntimeFailure: the original does not run, although inputs are given or verification is required.
        """
        self._check_original()
        builder = ReportBuilder(model, by_pass=self.weigh_each)
        gate, stopped = self.gate, self.stop_after is not None
        if stopped:
            from graphopt.rewrite.rewrite_filter import RewriteLimit

            gate = RewriteLimit(first=self.stop_after)
        cx = context_for(model, self.options, gate=gate, observers=self._all_watchers(builder))
        history = self._run_passes(model, cx, builder)
        builder.finished()
        fused, missed = self._fused_operators(model), self._missed_fusions(model, cx)
        _check_interface(builder.interface, Interface.of(model))
        if self.options.strict_fusion:  # before verification, which takes longer
            make_pipeline("check-strict-fusion").run(model, cx)
        if self.check is not None:
            self.check(model)
        verdict = self._verify(model, self._unproven(cx, history)) if self.verify else None
        if not self.verify and (fault := ir.find_fault(model)) is not None:
            raise VerificationFailed(f"the optimized model is broken: {fault.sentence}")
        return builder.build(model, cx, history, fused=fused, missed=missed, verdict=verdict, stopped=stopped)

    def _all_watchers(self, stats: Stats) -> list[PassInstrumentation]:
        watchers = [stats, *self.instruments]
        if self.validate_each or self.verify_each:
            from graphopt.instrument.validate_each import ValidateEach

            watchers.append(ValidateEach(self.verifier if self.verify_each else None, self.options.numerics))
        return watchers

    def _check_original(self) -> None:
        """Check that the original runs, if inputs are given or verification is required."""
        if not self.verify or self.verifier is None or not (self.verifier.given or self.require_verified):
            return
        self.entered("running the original")
        if self.verifier.refusal is None:
            return
        if self.verifier.lacks_memory:
            raise ResourceLimit(
                f"not verified: {self.verifier.refusal}",
                hint="free memory, or raise its limit; without --require-verified the result is written",
            )
        if not self.verifier.given:
            raise RuntimeFailure(
                f"not verified: {self.verifier.refusal}",
                hint="specify --input and --input-shape; without --require-verified the result is written",
            )
        raise RuntimeFailure(
            f"with the inputs given, {self.verifier.refusal}",
            hint="change --input, --input-shape, --dim or --dim-range; --no-verify skips this check",
        )

    def _run_passes(self, model: ir.Model, cx: Context, stats: Stats) -> History:
        try:
            return self.pipeline.run(model, cx, self._all_watchers(stats))
        finally:
            cx.close()

    def _fuses(self) -> bool:
        """Whether the pipeline creates fused operators."""
        return self.pipeline.provides(FUSED_OPERATORS, skip=self.options.skip)

    def _fused_operators(self, model: ir.Model) -> list[Fused]:
        """The fused operators that the pipeline created."""
        if not self._fuses():
            return []
        from graphopt.rewrite.fused_operators import fused_in
        from graphopt.rules import admitted_fusions

        return list(fused_in(model, admitted_fusions(self.options)))

    def _missed_fusions(self, model: ir.Model, cx: Context) -> list[Missed]:
        """The remaining partial matches of the pipeline's fusion patterns."""
        if not self._fuses():
            return []
        from graphopt.rewrite.missed_fusions import missed_in, weighed_against
        from graphopt.rules import fusing_rules

        missed = list(missed_in(model, fusing_rules(self.options), cx))
        return [*missed, *weighed_against(model, missed, cx)]

    def _unproven(self, cx: Context, history: History) -> bool:
        """Whether a rewrite is not proven to preserve all bits.

        Constants for other devices are folded on the CPU, whose kernels may compute other bits. For a
        constant operand of a product, onnxruntime may select another kernel. To models with quantizers, nodes
        are added after the passes.
        """
        from graphopt.rewrite.ort_qdq_miscompilation import has_quantizers
        from graphopt.rules import all_rules

        if (
            self.redefined
            or cx.unproven
            or not self.options.device.capabilities.is_host
            or has_quantizers(cx)
        ):
            return True
        proven = {step.name for step in self.pipeline.passes() if step.proven_exact}
        proven |= {rule.name for rule in all_rules() if rule.proven_exact}
        return bool(history.changed_by(lambda name: name not in proven or name in self.options.own))

    def _verify(self, model: ir.Model, unproven: bool) -> Verdict:
        """Compare ``model`` with the original, on fewer kinds of values unless a rewrite is ``unproven``."""
        from graphopt.verification.guarded_groups import verify_with_groups

        assert self.verifier is not None, "verification needs a verifier"
        try:
            libraries = () if self.libraries is None else self.libraries(model)
            self.entered("verifying")
            verdict = verify_with_groups(
                self.verifier,
                model,
                numerics=self.options.numerics,
                libraries=libraries,
                proven_exact=not unproven and not libraries,
            )
        except InvalidModel as error:
            raise VerificationFailed(f"the optimized model is broken: {error.message}") from error
        except SystemExhausted as error:
            raise ResourceLimit(
                f"the result can't be verified: {error.message}", hint=_unverified_hint(error.hint)
            ) from error
        except GraphoptError:  # the original is at fault
            raise
        except Exception as error:  # writing an invalid model may raise any exception
            limit = exhausted(error)
            if limit is not None:
                raise ResourceLimit(
                    f"{limit} to verify the result", hint=_unverified_hint(MEMORY_HINT)
                ) from error
            why = f"{type(error).__name__}: {error}"
            raise VerificationFailed(f"the optimized model can't be written: {why}") from error
        if not verdict.ok:
            raise VerificationFailed(
                f"the optimized model is not the same: {verdict.summary()}",
                hint="graphopt bisect names the rewrite at fault; --skip leaves out its rule",
                row=next(iter(verdict.failures), None),
            )
        return verdict


def _unverified_hint(hint: str | None) -> str:
    """``hint`` for a verification that lacks resources, and the way to do without verification."""
    return "; ".join(filter(None, (hint, "--no-verify writes it without a comparison")))


def _check_interface(before: Interface, after: Interface) -> None:
    """Check that the signature is unchanged."""
    changes = diff(before.signature, after.signature)
    if changes:
        raise VerificationFailed(f"the optimized model is called differently: {changes[0]}")


# From options to an attempt -----------------------------------------------------------------


def prepare(settings: config.Settings, /, **options: Unpack[OptimizeOptions]) -> Attempt:
    """The attempt for any model, with ``settings`` and ``options`` and without verification.

    Raises:
        UsageError: a pass, rule or option is unknown, or options contradict each other.
        TypeError: an object is not a pass, or not a rule.
    """
    settled = settings.complete_options(options)
    passes = make_pipeline(settled["pipeline"] or "", settled["pre_passes"], settled["post_passes"])
    if (target := settled["target_opset"]) is not None:  # the first pass, before pre-passes
        passes = Pipeline((*make_pipeline(_conversion(target, settings)).steps, *passes.steps))
    if settled["strip_docs"]:
        passes = Pipeline((*passes.steps, *make_pipeline("strip-docs").steps))
    own_rules = checked_rules(settled["rules"])
    every_own = checked_rules({id(rule): rule for rule in (*own_rules, *rules_by_place(passes))}.values())
    for_speed = any(step.for_speed for step in passes.passes())
    device = target_device(settled["device"], probe=for_speed)  # probing takes time
    limits = make_options(settings, settled, device=device, every_own=every_own)
    names = [step.name for step in passes.passes()]
    check_applied(own_rules, names)
    own = [step.name for step in own_passes(passes.passes())] + [rule.name for rule in every_own]
    kernels = passes.provides(NATIVE_GROUPS, skip=limits.skip)
    limits = replace(limits, kernels=kernels, own=frozenset(own), rules=own_rules)
    fixed, ranges = settled["dims"] or {}, settled["dim_ranges"] or {}
    return pick_options(
        Attempt,
        settled,
        pipeline=passes,
        options=limits,
        dims=fixed,
        dim_ranges=ranges,
        dim_relations=settled["dim_relations"] or {},
        seed=settings.seed,
        verify=False,
    )


def _conversion(target: int, settings: config.Settings) -> str:
    """The pass that converts a model to opset ``target``; for verification, the runtime must support it."""
    from graphopt.ort.target import Target

    runtime = Target()
    if settings.verify and target > runtime.opset_ceiling:
        raise UsageError(
            f"onnxruntime {runtime.version} runs opsets up to {runtime.opset_ceiling}, not {target}",
            hint="--no-verify skips this check",
        )
    return f"convert-opset{{target={target}}}"


def is_heavy(model: ir.Model, limit: int) -> bool:
    """Whether a run of ``model`` may need more than ``limit`` bytes, and therefore a limited process."""
    from graphopt.analysis.cost import result_bytes
    from graphopt.ort.crash_risks import divergence_risk

    if divergence_risk(model) is not None:
        return True
    if model.functions:  # facts of a function are common to all its calls
        model = copy(model)
        registry().passes["inline-functions"]().run(model, context_for(model))
    return result_bytes(model) > limit
