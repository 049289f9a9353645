"""Profiles, variants for what they tell, and executors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from graphopt import config, ir
from graphopt.api.optimizing import optimize
from graphopt.assembly import (
    ModelLike,
    choose_device,
    chosen_settings,
    libraries_of,
    loaded,
    settings_among,
    verifier_for,
)
from graphopt.driver import is_heavy, make_options, make_pipeline
from graphopt.instrument.report import Report
from graphopt.ir.io.interop import PassBase
from graphopt.passes.base import Pass
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.options import ExecutorOptions
    from graphopt.executor.pytree import Nested
    from graphopt.fusion.library import Libraries
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.profile import Guard, Profile
    from graphopt.specialization.build import Specialization, Specialized
    from graphopt.verification.verifier import Verifier


@checked()
def record_profile(
    model: ModelLike,
    runs: Iterable[Mapping[str, Any] | InputOptions],
    *,
    requires_grad: Iterable[str] = (),
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
) -> Profile:
    """Run a model, and tell what was seen of its inputs, and of inner values whose shapes depend on data.

    >>> batches = [{"ids": np.zeros((1, n), np.int64)} for n in (128, 64)]   # doctest: +SKIP
    >>> record_profile("model.onnx", batches).values["ids"].shape            # doctest: +SKIP
    (1, 'd0')

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        runs: what to feed in each run: arrays by name, as for :func:`run`, or what is given of inputs that
            are made up else, whose contents are not recorded.
        requires_grad: inputs for which a gradient is wanted.
        device, allow_fallback: as for :func:`run`.

    Raises:
        UsageError: what is fed does not fit the model, or ``requires_grad`` names no input.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    from graphopt.specialization.record import Recorder

    chosen, _ = choose_device(device, chosen_settings(allow_fallback=allow_fallback))
    with Recorder(loaded(model), device=chosen, requires_grad=requires_grad) as recorder:
        for given in runs:
            if isinstance(given, Mapping):
                recorder.run(given)
            else:
                recorder.make_up(given)
        return recorder.profile


@checked(optimize)
def specialize(
    model: ModelLike,
    how: Specialization,
    *,
    bundle: bool = False,
    pre_passes: Iterable[str | Pass | PassBase] = (),
    strict: bool = False,
    inputs: InputOptions | None = None,
    **arguments: Any,
) -> Specialized:
    """Optimize a model, and variants of it for what a profile saw of its inputs.

    >>> found = specialize("model.onnx", Specialization(Profile.read("profile.json")))   # doctest: +SKIP
    >>> save(found.model, "model.opt.onnx")                                         # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        how: the profile, and how many variants are made of it.
        bundle: the result is to be a bundle, in which a guard costs next to nothing: hardly smaller variants
            are kept, too.
        pre_passes, strict, inputs: as for :func:`optimize`. Variants are verified with inputs made up.
        arguments: of :func:`optimize`, for the general model and each variant.

    Raises:
        UsageError: the profile is of another model; or as for :func:`optimize`.
        VerificationFailed: as for :func:`optimize`.
    """
    from graphopt.inputs.feeds import InputOptions
    from graphopt.specialization.build import build
    from graphopt.specialization.profitability import BUNDLE, ONE_MODEL
    from graphopt.specialization.specialize_inputs import static_inputs
    from graphopt.specialization.versioned_model import verified_model

    original = loaded(model)
    settings, device = settings_among(arguments), arguments.get("device")

    given = inputs or InputOptions(seed=settings.seed)
    given = replace(given, examples=(*given.examples, *how.profile.shapes))

    def optimized(
        candidate: ir.Model, first: tuple[str, ...], guard: Guard | None
    ) -> tuple[ir.Model, Report]:
        if guard is None:
            return optimize(model, pre_passes=pre_passes, strict=strict, inputs=given, **arguments)
        fixed = static_inputs(guard, given)
        return optimize(
            candidate,
            pre_passes=(*first, *pre_passes),
            strict=strict,
            inputs=fixed,
            reference=None if fixed is None else model,
            **arguments,
        )

    def judge(given: InputOptions) -> Verifier:
        return verifier_for(original, given, settings, device, is_heavy(original, settings.memory_limit))[0]

    found = build(original, how, optimized, BUNDLE if bundle else ONE_MODEL, strict=strict)
    if bundle:
        return found
    numerics = make_options(settings).numerics
    whole = verified_model(found, how, judge if settings.verify else None, given, numerics, strict=strict)
    return replace(found, model=whole)


@overload
def compile(
    model: ModelLike, options: ExecutorOptions | None = None, *, outputs: None = None, **arguments: Any
) -> Executor: ...


@overload
def compile(
    model: ModelLike, options: ExecutorOptions | None = None, *, outputs: Nested, **arguments: Any
) -> NestedExecutor: ...


@checked(optimize)
def compile(
    model: ModelLike,
    options: ExecutorOptions | None = None,
    *,
    inputs: Nested | None = None,
    outputs: Nested | None = None,
    device: str | Device | None = None,
    threads: int | None = None,
    pipeline: str | None = None,
    pre_passes: Iterable[str | Pass | PassBase] = (),
    verify: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
    **arguments: Any,
) -> Executor:
    """An executor, which runs a model and specializes it for the inputs that come.

    >>> executor = compile("model.onnx")                                    # doctest: +SKIP
    >>> executor({"ids": ids})["logits"]                                    # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`). One that is given by its path is read again
            after it was released.
        options: how the executor works.
        inputs, outputs: names, nested in dicts, lists and tuples as tensors are; by default dicts by name.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: inside one operator; by default onnxruntime's choice.
        pipeline: a preset or a pipeline; by default what :func:`graphopt.fuser` says, else ``O3``.
        pre_passes: as for :func:`optimize`, before the pipeline of each plan.
        verify: compare each plan with the original before it runs. A specialization that differs is dropped;
            the original runs instead of a general plan that differs.
        clock: seconds, by which the original is released.
        arguments: others of :func:`optimize`, for all plans. With ``strict``, a general plan that differs
            from the original is an error.

    Raises:
        UsageError: ``inputs`` or ``outputs`` name what the model lacks, or there is no such ``pipeline``.
        TypeError: ``arguments`` are none of :func:`optimize`.
    """
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.options import current_fuser
    from graphopt.executor.plan import Host, PlanFactory
    from graphopt.executor.plan_cache import ModelSource
    from graphopt.inputs.feeds import InputOptions
    from graphopt.specialization.specialize_inputs import static_inputs

    fuser = current_fuser()
    settings = settings_among({**arguments, "verify": verify})
    text = pipeline or ("O3" if fuser is None else fuser.pipeline)
    own = tuple(pre_passes)
    make_pipeline(text, own)  # fails now if there is no such pipeline or pass
    chosen = choose_device(device, settings)[0]

    def libraries(found: ir.Model) -> Libraries:
        return libraries_of(found, settings, chosen)

    host = Host(chosen, threads, "default" if fuser is None else fuser.optimizations, libraries)

    strict = bool(arguments.pop("strict", False))

    def optimized(
        model: ir.Model, first: tuple[str, ...], original: ir.Model, guard: Guard | None
    ) -> ir.Model:
        fixed = None if guard is None else static_inputs(guard, InputOptions(seed=settings.seed))
        with config.using(settings):
            return optimize(
                model,
                pipeline=text,
                pre_passes=(*first, *own),
                device=host.device,
                strict=True,
                inputs=fixed,
                reference=None if fixed is None else original,
                **arguments,
            ).model

    def prepared(candidate: ir.Model) -> ir.Model:
        with config.using(settings):
            return optimize(candidate, pipeline="fallback", verify=False).model

    maker = PlanFactory(optimized, prepared, host, strict)
    kind = Executor if outputs is None else NestedExecutor
    return kind(ModelSource(model), maker, options, inputs=inputs, outputs=outputs, clock=clock)
