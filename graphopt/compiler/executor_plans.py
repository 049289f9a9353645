"""The factory of an executor's plans, which optimizes and verifies them under the given options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from graphopt import config, ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import optimized, pipeline_provides
from graphopt.compiler.optimize_variant import optimize_variant
from graphopt.diagnostics.record import Record
from graphopt.errors import UsageError
from graphopt.model_arguments import copy
from graphopt.passes.base import SPECIALIZED_TYPES
from graphopt.passes.pipelines import make_pipeline

if TYPE_CHECKING:
    from graphopt.executor.executor_options import ExecutorOptions
    from graphopt.executor.fusers import Fuser
    from graphopt.executor.plan_factory import Optimize, PlanFactory, PlanRequest
    from graphopt.executor.plan_pipelines import PlanPipelines

#: Options with passes and rules of the caller, and with scopes that must be fused.
_CUSTOMIZATIONS = ("pre_passes", "post_passes", "rules", "strict_fusion")


def plan_factory(env: Environment, options: ExecutorOptions, threads: int | None) -> PlanFactory:
    """The factory of plans under the options of ``env``, without those about inputs.

    Raises:
        UsageError: a pass or pipeline is unknown, ``pipeline`` is given with the pipelines of the JIT, or the
            compile log can't be written.
    """
    from graphopt.executor.compile_log import CompileLog
    from graphopt.executor.plan import Host
    from graphopt.executor.plan_factory import PlanFactory
    from graphopt.executor.thread_local_switches import current_fuser

    fuser = current_fuser()
    record = Record()
    host = Host(
        env.device,
        threads,
        "default" if fuser is None else fuser.optimizations,
        env.toolchain.libraries,
        record,
        options.features.switch(record),
    )
    of_plans = env.having({"device": env.device, "strict": True})
    return PlanFactory(
        _optimizer(of_plans),
        _preparer(env),
        host,
        _pipelines(env, of_plans, options, fuser),
        strict=env.options["strict"],
        requires_grad=tuple(options.requires_grad),
        log=CompileLog(options.compile_log, env.settings),
        created_graph=env.created_graph,
    )


def _pipelines(
    env: Environment, of_plans: Environment, options: ExecutorOptions, fuser: Fuser | None
) -> PlanPipelines:
    """The pipelines that ``options``, the setting and the fuser select."""
    from graphopt.executor.fusers import FUSERS
    from graphopt.executor.plan_pipelines import jit_pipelines, preset_pipelines
    from graphopt.transforms.profile.instrument import Watch

    given = env.given.get("pipeline")
    if (options.pipelines or env.settings.pipelines) == "jit":
        if given is not None:
            raise UsageError("pipelines='jit' excludes pipeline", hint="graphopt.fuser selects a variant")
        fuser = fuser or FUSERS["builtin"]
        by_pass = pipeline_provides(SPECIALIZED_TYPES, of_plans.having({"pipeline": fuser.plan}))
        return jit_pipelines(fuser, Watch(options.watch), options.watch_limit, by_pass=by_pass)
    text = given or ("O3" if fuser is None else fuser.pipeline)
    make_pipeline(text, tuple(env.options["pre_passes"]))  # raises for an unknown pass or pipeline
    by_pass = pipeline_provides(SPECIALIZED_TYPES, of_plans.having({"pipeline": text}))
    return preset_pipelines(text, by_pass=by_pass)


def _optimizer(env: Environment) -> Optimize:
    """The function that optimizes a model for a plan, and compares it with the original."""
    from graphopt.inputs.dim_guarantees import fix_dims
    from graphopt.inputs.feeds import InputOptions

    def optimize(request: PlanRequest) -> ir.Model:
        pipeline, guard = request.pipeline, request.guard
        of_plan = env if pipeline.has_own else env.without(*_CUSTOMIZATIONS)
        of_plan = of_plan.having(
            {
                "pipeline": pipeline.steps,
                "skip": (*(env.options["skip"] or ()), *pipeline.skip),
                "instruments": (*env.options["instruments"], *request.instruments),
            }
        )
        with config.using(env.settings):
            if guard is None:
                return optimized(of_plan, request.model).model
            inputs, original = InputOptions(seed=env.settings.seed), request.original
            if request.is_derived and env.options["dims"]:  # its dims are already fixed
                of_plan, original = of_plan.without("dims"), copy(original)
                fix_dims(original, env.options["dims"], strict=False)
            by_pass = pipeline.by_pass or request.is_derived
            return optimize_variant(
                of_plan, request.model, original, guard, inputs, by_pass=by_pass, first=pipeline.first
            ).model

    return optimize


def _preparer(env: Environment) -> Callable[[ir.Model], ir.Model]:
    """The function that runs the pipeline ``fallback``."""

    def prepared(model: ir.Model) -> ir.Model:
        with config.using(env.settings):
            return optimized(Environment(env.settings), model, pipeline="fallback", verify=False).model

    return prepared
