"""Creates the plans of an executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

from graphopt import ir
from graphopt.context import Refusal
from graphopt.errors import NotFused, PassFailed, VerificationFailed
from graphopt.executor.compile_log import Compilation, CompileLog
from graphopt.executor.kept_model import KeptModel
from graphopt.executor.plan import Host, Plan
from graphopt.executor.plan_pipelines import PlanPipeline, PlanPipelines
from graphopt.executor.profiled_plan import ProfiledPlan
from graphopt.model_arguments import copy
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.profile import Guard, Profile, SpecializationKind
from graphopt.profile.annotations import annotate_gradients
from graphopt.specialization.specialize_inputs import annotate_inputs, specialize_inputs
from graphopt.transforms.profile.instrument import Instrument
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class PlanRequest:
    """A model to optimize for a plan.

    Attributes:
        model: the model.
        pipeline: the passes.
        original: the model for the comparison; ``model`` is equivalent to it if ``guard`` holds.
        guard: the assumptions about inputs; ``None`` without assumptions.
        is_derived: whether ``model`` was made from a plan, not from the original.
        instruments: observers of the passes.
    """

    model: ir.Model
    pipeline: PlanPipeline
    original: ir.Model
    guard: Guard | None = None
    is_derived: bool = False
    instruments: tuple[PassInstrumentation, ...] = ()


#: Optimizes a model and verifies the result at most once, without searching for a faulty rewrite. Raises
#: VerificationFailed if the results differ, and PassFailed if a pass failed.
Optimize = Callable[[PlanRequest], ir.Model]


@dataclass(frozen=True)
class PlanFactory:
    """Creates plans from models, which are not modified.

    Attributes:
        optimize: optimizes a model.
        prepare: runs the pipeline ``fallback``, for the plan that is used while optimizing is off.
        host: the execution environment of the plans.
        pipelines: the pipelines of the plans.
        strict: fail if the general plan fails verification; by default the original replaces it.
        requires_grad: inputs and initializers that require a gradient; annotated for pipelines that depend
            on them.
        log: records each compilation.
        unsupported: the reason why the device does not support the model, which is then not optimized.
        created_graph: called with the name, the model and the assumptions of each graph.
    """

    optimize: Optimize
    prepare: Callable[[ir.Model], ir.Model]
    host: Host
    pipelines: PlanPipelines
    strict: bool = False
    requires_grad: tuple[str, ...] = ()
    log: CompileLog = field(default_factory=CompileLog)
    unsupported: str | None = None
    created_graph: Callable[[str, ir.Model, str], object] = lambda name, model, detail: None

    def general(self, original: ir.Model) -> Plan:
        """The plan for all inputs, ready to run.

        Raises:
            NotFused: a scope of ``strict_fusion`` was not fused into one operator.
            VerificationFailed, PassFailed: ``strict``, and optimizing failed.
        """
        pipeline = self.pipelines.general
        problems: tuple[str, ...] = ()
        with self.log.compilation("general", "inputs without a specialization", pipeline.name) as compilation:
            failed = self.unsupported
            try:
                if failed is None:
                    model = self._optimized(compilation, PlanRequest(original, pipeline, original))
            except (VerificationFailed, PassFailed) as failure:
                if self.strict or isinstance(failure, NotFused):
                    raise
                failed = failure.message
            if failed is not None:
                model = self.prepare(original)
                compilation.outcome = f"the general plan runs the original: {failed}"
                problems = (compilation.outcome,)
            self.created_graph("optimized-graph", model, "general")
            plan = Plan("general", "general", KeptModel(model), self.host, compilation, problems=problems)
            plan.prepare()
        return plan

    def fallback(self, original: ir.Model) -> Plan:
        """The plan that runs while optimizing or profiling is off."""
        host = replace(self.host, optimizations="off")
        with self.log.compilation("fallback", "optimizing or profiling is off", "fallback") as compilation:
            return Plan("fallback", "fallback", KeptModel(self.prepare(original)), host, compilation)

    def profiled(self, original: ir.Model) -> ProfiledPlan | None:
        """The plan whose runs are profiled, ready to run; ``None`` if the pipelines have none.

        Raises:
            GraphoptError: optimizing or verifying failed.
        """
        pipeline = self.pipelines.profiled
        if pipeline is None:
            return None
        model, left_out = original, _LeftOut()
        if model.ir_version < ir.FUNCTIONS_SINCE:  # profiling nodes are calls of functions
            model = copy(original)
            ir.Editor(model).raise_ir_version(ir.FUNCTIONS_SINCE)
        with self.log.compilation("profiled", "a run to profile", pipeline.name) as compilation:
            request = PlanRequest(model, pipeline, original, instruments=(left_out,))
            kept = KeptModel(self._optimized(compilation, request))
            self.created_graph("profiled-graph", kept.get(), "")
            plan = ProfiledPlan("profiled", "profiled", kept, self.host, compilation, left_out=left_out.count)
            plan.prepare()
        return plan

    def specialized(
        self,
        original: ir.Model,
        guard: Guard,
        kind: SpecializationKind,
        profile: Profile,
        source: ir.Model | None = None,
    ) -> Plan:
        """A plan for inputs that satisfy ``guard``, ready to run, without a name.

        Args:
            original: the source model.
            guard: the assumptions.
            kind: the treatment of the sizes of dims.
            profile: the profile that they are derived from.
            source: the model of the profiled plan, if there is one, from which the plan is made.

        Raises:
            GraphoptError: optimizing or verifying failed.
        """
        pipeline = self.pipelines.gradients if self.requires_grad else self.pipelines.optimized
        cause = counted(profile.runs, "profiled run")
        with self.log.compilation(
            "optimized", cause, pipeline.name, guard=str(guard), profile=profile
        ) as compilation:
            model = original if source is None else source
            if pipeline.by_pass:
                prepared = annotate_inputs(model, guard, profile)
            else:
                prepared = specialize_inputs(model, guard, profile)
            request = PlanRequest(prepared, pipeline, original, guard, is_derived=source is not None)
            kept = KeptModel(self._optimized(compilation, request))
            self.created_graph("optimized-graph", kept.get(), f"{kind.value}, {guard}")
            plan = Plan("", "optimized", kept, self.host, compilation, guard, kind)
            plan.prepare()
        return plan

    def _optimized(self, compilation: Compilation, request: PlanRequest) -> ir.Model:
        """The optimized model.

        If the pipeline differentiates, the values in ``requires_grad`` are annotated before it runs.
        """
        if request.pipeline.differentiates and self.requires_grad:
            model = copy(request.model)
            annotate_gradients(model, dict.fromkeys(self.requires_grad, True))
            request = replace(request, model=model)
        return self.optimize(replace(request, instruments=(*request.instruments, compilation.recorder)))


class _LeftOut(PassInstrumentation):
    """Counts the values that the pass ``instrument`` can't watch."""

    def __init__(self) -> None:
        self.count = 0

    def refused(self, refusal: Refusal) -> None:
        """Count a value."""
        self.count += refusal.rule == Instrument.name
