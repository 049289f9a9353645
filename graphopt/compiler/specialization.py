"""Profiles, variants for them, and executors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack, overload

from graphopt import ir
from graphopt.compiler.check_shared_buffers import SharedBufferCheck
from graphopt.compiler.environment import Environment
from graphopt.compiler.executor_plans import plan_factory
from graphopt.compiler.record_settings import digest_of, record_of, write_record
from graphopt.model_arguments import ModelLike, copy
from graphopt.optimize_options import DeviceOptions, OptimizeOptions, PlanOptions
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.executor_options import ExecutorOptions
    from graphopt.executor.pytree import Nested
    from graphopt.inputs.feeds import InputOptions
    from graphopt.profile import Profile
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
                recorder.run_generated(given)
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
    from graphopt.compiler.build_record import build_record_of
    from graphopt.compiler.optimization import with_fuser
    from graphopt.compiler.optimize_all_variants import VariantOptimizer
    from graphopt.optimization_attempt import prepare
    from graphopt.profile import FusionStrategy, check_profile
    from graphopt.specialization.build_record import BuildRecord
    from graphopt.specialization.build_variants import build, requested_variants
    from graphopt.specialization.profitability import BUNDLE, ONE_MODEL
    from graphopt.specialization.restrict_profile import restrict
    from graphopt.specialization.versioned_model import Checks, checked_model, with_variant

    env = env.having(options)
    original, requested = env.load(model), how
    check_profile(how.profile, original)
    origin = build_record_of(env, model, original) if bundle else BuildRecord()
    fingerprint, redefined = how.profile.model, copy(original)
    remarks = prepare(env.settings, **with_fuser(env).given).redefine(redefined)
    if remarks:  # the profile may have inputs that are constant now
        names = [value.name or "" for value in redefined.graph.inputs]
        gone = [value.name or "" for value in original.graph.inputs if value.name not in names]
        profile = how.profile.without_inputs(gone, ir.fingerprint(redefined, names=True))
        model, original, how = redefined, redefined, replace(how, profile=profile)
    sizes, ranges = env.options["dims"] or {}, env.options["dim_ranges"] or {}
    relations = env.options["dim_relations"] or {}
    restricted = restrict(original, how.profile, sizes, ranges, relations)
    how = replace(how, profile=restricted.profile)

    policy = BUNDLE if bundle else ONE_MODEL
    variants = requested_variants(restricted.model, how, policy)
    optimizer = VariantOptimizer(env, restricted, len(variants))
    if env.options["tune"] is not None:
        combine = None if bundle else partial(with_variant, request=how)
        policy = replace(policy, gain=optimizer.measured_gain(combine))
    strict = env.options["strict"]
    general = optimizer.general(model, original)
    found = build(restricted.model, how, variants, general, optimizer.variant, policy, strict=strict)
    record = record_of(
        with_fuser(env),
        specialize,
        profile=digest_of(requested.profile),
        strategy=None if requested.strategy == FusionStrategy() else str(requested.strategy),
        most=requested.most,
        single_file=requested.single_file or None,
        pins=requested.pins or None,
        bundle=bundle,
    )
    report = found.report.having(
        remarks=[*remarks, *restricted.remarks], settings="" if record is None else record.to_json()
    )
    write_record(record, found.general, *(branch.model for branch in found.branches))
    if bundle:
        kept = [variant.kernels for variant in report.variants if variant.left_out is None]
        kernels = tuple(dict.fromkeys([*report.kernels, *chain.from_iterable(kept)]))
        report = report.having(libraries=(), kernels=kernels)
        return replace(found, original=fingerprint, report=report, build_record=origin)
    checks = Checks(
        partial(env.verifier, restricted.model) if env.settings.verify else None,
        replace(optimizer.inputs, ranges=restricted.ranges, vouched=bool(sizes or relations)),
        env.numerics,
        env.toolchain.libraries,
        SharedBufferCheck(env),
    )
    result = checked_model(replace(found, original=fingerprint, report=report), how, checks, strict=strict)
    if result.model is not None:
        write_record(record, result.model)
    return result


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
        UsageError: the model lacks a name of ``inputs`` or ``outputs``; or ``pipeline`` is unknown, or given
            with ``pipelines="jit"``.
        TypeError: an option is unknown.
    """
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.executor_options import ExecutorOptions
    from graphopt.executor.plan_cache import ModelSource

    options = options or ExecutorOptions()
    factory = plan_factory(env.having(arguments).without("inputs"), options, threads)
    kind = Executor if outputs is None else NestedExecutor
    return kind(ModelSource(model), factory, options, inputs=inputs, outputs=outputs, clock=clock)
