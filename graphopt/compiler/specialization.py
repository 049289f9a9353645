"""Profiles, variants for them, and executors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack, overload

from graphopt import config, ir
from graphopt.compiler.check_shared_buffers import check_shared
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import Result, optimize, with_fuser
from graphopt.model_arguments import ModelLike
from graphopt.optimize_options import DeviceOptions, OptimizeOptions, PlanOptions
from graphopt.passes.base import SPECIALIZED_TYPES
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.executor_options import ExecutorOptions
    from graphopt.executor.pytree import Nested
    from graphopt.inputs.feeds import InputOptions
    from graphopt.profile import Guard, Profile
    from graphopt.specialization.build_variants import Specialization, Specialized


@checked
def record_profile(
    env: Environment,
    model: ModelLike,
    runs: Iterable[Mapping[str, Any] | InputOptions],
    *,
    requires_grad: Iterable[str] = (),
    watch: str = "shapes",
    watch_limit: int = 1024,
    **options: Unpack[DeviceOptions],
) -> Profile:
    """Run a model, and record properties of its inputs and of inner values.

    >>> batches = [{"x": np.zeros((n, 4), np.float32)} for n in (8, 64)]
    >>> graphopt.record_profile("model.onnx", batches).values["x"].shape
    ('d0', 4)

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        runs: the inputs of each run: arrays by name, as for :func:`run`, or a description of generated
            inputs. The contents of generated inputs are not recorded.
        requires_grad: inputs that need a gradient.
        watch: ``inputs``, ``shapes`` (also inner values with data-dependent shapes) or ``all`` values.
        watch_limit: maximum number of inner values to record.
        options: as for :func:`run`.

    Raises:
        UsageError: inputs do not fit the model, ``requires_grad`` names no input, or ``watch`` is unknown.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    from graphopt.specialization.profile_recorder import Recorder
    from graphopt.transforms.profile.instrument import parse_watch

    env = env.having(options)
    kind = parse_watch(watch)
    with Recorder(env.load(model), env.device, requires_grad, kind, watch_limit) as recorder:
        for given in runs:
            if isinstance(given, Mapping):
                recorder.run(given)
            else:
                recorder.make_up(given)
        return recorder.profile


@checked
def specialize(
    env: Environment,
    model: ModelLike,
    how: Specialization,
    *,
    bundle: bool = False,
    **options: Unpack[OptimizeOptions],
) -> Specialized:
    """Optimize a model, and variants of it for the inputs of a profile.

    >>> found = specialize("model.onnx", Specialization(Profile.read("profile.json")))   # doctest: +SKIP
    >>> save(found.model, "model.opt.onnx")                                         # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        how: the profile, and the number of variants.
        bundle: whether the result will be a bundle. A bundle checks guards at almost no cost, so that
            variants with few removed nodes are also kept.
        options: as for :func:`optimize`, for the general model and each variant. Variants are verified with
            generated inputs.

    Raises:
        UsageError: the profile is of another model; or as for :func:`optimize`.
        VerificationFailed: as for :func:`optimize`.
    """
    from graphopt.profile import Guard, check_profile
    from graphopt.specialization.build_variants import build, requested_variants
    from graphopt.specialization.measured_gain import MeasuredGain
    from graphopt.specialization.profile_guarantees import ranges_of, restrict
    from graphopt.specialization.profitability import BUNDLE, ONE_MODEL
    from graphopt.specialization.specialize_inputs import (
        annotate_inputs,
        profiled_inputs,
        specialize_inputs,
        static_inputs,
    )
    from graphopt.specialization.versioned_model import Checks, checked_model, with_variant

    env = env.having(options)
    original = env.load(model)
    check_profile(how.profile, original)
    sizes, ranges = env.options["dims"] or {}, env.options["dim_ranges"] or {}
    restricted = restrict(original, how.profile, sizes, ranges)
    fingerprint, how = how.profile.model, replace(how, profile=restricted.profile)
    given = replace(env.inputs, examples=(*env.inputs.examples, *how.profile.shapes))
    of_variants = env.without("inputs", "dims", "dim_ranges")
    own, strict = tuple(env.options["pre_passes"]), env.options["strict"]
    by_step = _has_step(env)

    policy, tune, seconds = BUNDLE if bundle else ONE_MODEL, env.options["tune"], 0.0
    profiled = partial(profiled_inputs, profile=how.profile, inputs=given)
    variants = requested_variants(restricted.model, how, policy)
    if tune is not None:  # all models are tuned, and each variant is timed against the general model
        seconds = tune.share_for(len(variants))
        policy = replace(
            policy,
            gain=MeasuredGain(
                profiled,
                env.device,
                env.toolchain.libraries,
                seconds,
                None if bundle else partial(with_variant, how=how),
                tune.threads,
                env.entered,
            ),
        )

    def optimized(candidate: ir.Model, first: tuple[str, ...], guard: Guard | None) -> Result:
        if guard is None:
            share = None if tune is None else tune.with_share(seconds, tune.shapes or how.profile.shapes[:1])
            general: ModelLike = model
            if by_step and any(how.profile.requires_grad.values()):
                general = annotate_inputs(original, Guard(), replace(how.profile, values={}))
            return optimize(env.having({"tune": share}), general, inputs=given)
        fixed, typical = static_inputs(guard, given), profiled(guard)
        shapes = () if typical is None else (typical.shapes,)
        return optimize(
            of_variants.having({"tune": None if tune is None else tune.with_share(seconds, shapes)}),
            candidate,
            pre_passes=(*first, *own),
            inputs=fixed,
            reference=_reference(restricted.model, guard, is_static=fixed is not None, by_step=by_step),
            dim_ranges=ranges_of(candidate, restricted.ranges),
        )

    prepared = partial(annotate_inputs, profile=how.profile) if by_step else specialize_inputs
    found = build(restricted.model, how, variants, optimized, policy, strict=strict, prepare=prepared)
    report = found.report.having(remarks=restricted.remarks)
    if bundle:
        kept = [variant.kernels for variant in report.variants if variant.left_out is None]
        kernels = tuple(dict.fromkeys([*report.kernels, *chain.from_iterable(kept)]))
        return replace(found, original=fingerprint, report=report.having(libraries=(), kernels=kernels))
    checks = Checks(
        partial(env.verifier, restricted.model) if env.settings.verify else None,
        replace(given, ranges=restricted.ranges, vouched=bool(sizes)),
        env.numerics,
        env.toolchain.libraries,
        partial(check_shared, tuple(env.options["share_buffers"]), env),
    )
    found = replace(found, original=fingerprint, report=report)
    return checked_model(found, how, checks, strict=strict)


def _has_step(env: Environment) -> bool:
    """Whether a pass of the pipeline specializes annotated inputs; if so, no earlier step does."""
    options = with_fuser(env).options
    made = make_pipeline(options["pipeline"] or "", options["pre_passes"], options["post_passes"])
    return made.provides(SPECIALIZED_TYPES, skip=tuple(options["skip"] or ()))


def _reference(original: ir.Model, guard: Guard, *, is_static: bool, by_step: bool) -> ir.Model | None:
    """The model that a variant is compared with; ``None`` for the variant itself, before its optimization.

    A variant that a pass specializes has the declarations of the original, so that inputs generated for it
    need not satisfy ``guard``; inputs generated for the reference do. Verification also feeds inputs that
    have a default. A reference without the inputs that the guard assumes to be absent ignores such feeds.
    """
    from graphopt.specialization.specialize_inputs import specialize_inputs

    if is_static and not guard.absent:
        return original
    return specialize_inputs(original, guard) if by_step else None


@overload
def compile(
    env: Environment,
    model: ModelLike,
    options: ExecutorOptions | None = None,
    *,
    inputs: Nested | None = None,
    outputs: None = None,
    threads: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    **arguments: Unpack[PlanOptions],
) -> Executor: ...


@overload
def compile(
    env: Environment,
    model: ModelLike,
    options: ExecutorOptions | None = None,
    *,
    inputs: Nested | None = None,
    outputs: Nested,
    threads: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    **arguments: Unpack[PlanOptions],
) -> NestedExecutor: ...


@checked
def compile(
    env: Environment,
    model: ModelLike,
    options: ExecutorOptions | None = None,
    *,
    inputs: Nested | None = None,
    outputs: Nested | None = None,
    threads: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    **arguments: Unpack[PlanOptions],
) -> Executor:
    """An executor, which runs a model and specializes it for the inputs that it receives.

    >>> executor = graphopt.compile("model.onnx")
    >>> executor({"x": x})["logits"].shape
    (2, 3)

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`). A path is read again if the model is needed
            after its release.
        options: options of the executor.
        inputs, outputs: names, nested in dicts, lists and tuples like the tensors; by default dicts by name.
        threads: threads inside one operator; by default onnxruntime's choice.
        clock: the current time in seconds, for releasing the original.
        arguments: as for :func:`optimize`, for all plans. The default pipeline is that of
            :func:`graphopt.fuser`, otherwise ``O3``. Each plan is compared with the original before it runs.
            A specialization that differs is dropped; if a general plan differs, the original runs instead,
            or, with ``strict``, an error is raised.

    Raises:
        UsageError: the model lacks a name of ``inputs`` or ``outputs``, or ``pipeline`` is unknown.
        TypeError: an option is unknown.
    """
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.plan import Host, PlanFactory
    from graphopt.executor.plan_cache import ModelSource
    from graphopt.executor.thread_local_switches import current_fuser
    from graphopt.inputs.feeds import InputOptions
    from graphopt.specialization.specialize_inputs import static_inputs

    env = env.having(arguments).without("inputs")
    fuser = current_fuser()
    text = env.given.get("pipeline") or ("O3" if fuser is None else fuser.pipeline)
    own = tuple(env.options["pre_passes"])
    make_pipeline(text, own)  # fails now if a pass or pipeline is unknown
    host = Host(
        env.device, threads, "default" if fuser is None else fuser.optimizations, env.toolchain.libraries
    )
    of_plans = env.having({"pipeline": text, "device": env.device, "strict": True})
    by_step = _has_step(of_plans)

    def optimized(
        model: ir.Model, first: tuple[str, ...], original: ir.Model, guard: Guard | None
    ) -> ir.Model:
        fixed = reference = None
        if guard is not None:
            fixed = static_inputs(guard, InputOptions(seed=env.settings.seed))
            reference = _reference(original, guard, is_static=fixed is not None, by_step=by_step)
        with config.using(env.settings):
            return optimize(
                of_plans, model, pre_passes=(*first, *own), inputs=fixed, reference=reference
            ).model

    def prepared(candidate: ir.Model) -> ir.Model:
        with config.using(env.settings):
            return optimize(Environment(env.settings), candidate, pipeline="fallback", verify=False).model

    maker = PlanFactory(
        optimized,
        prepared,
        host,
        env.options["strict"],
        by_step,
        () if options is None else tuple(options.requires_grad),
    )
    kind = Executor if outputs is None else NestedExecutor
    return kind(ModelSource(model), maker, options, inputs=inputs, outputs=outputs, clock=clock)
