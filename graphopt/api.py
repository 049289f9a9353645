"""The Python interface: load, optimize, verify, run, record_profile, save.

>>> import graphopt
>>> model, report = graphopt.optimize(graphopt.load_model("model.onnx"))   # doctest: +SKIP
>>> print(report)                                                    # doctest: +SKIP
>>> graphopt.save(model, "model.opt.onnx")                           # doctest: +SKIP

Arguments that are settings too (see :class:`graphopt.config.Settings`) default to the settings
in force: those of the nearest ``graphopt.toml``, of the environment, or of
:func:`graphopt.config.patch`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graphopt import config, ir
from graphopt.assembly import (
    PathLike,
    choose_device,
    loaded,
    meant_device,
    oracle_for,
    produce,
    saver_for,
    tuner_for,
    working_copy,
)
from graphopt.context import Options
from graphopt.driver import Job, context_for, copy, is_heavy, make_options, make_pipeline
from graphopt.errors import UsageError
from graphopt.instrument.base import Watcher
from graphopt.instrument.report import Report
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Pipeline
from graphopt.request import prepare, vouch, within

if TYPE_CHECKING:
    from graphopt.executor.executor import Executor, ExecutorOptions
    from graphopt.executor.structure import Nested
    from graphopt.profile import Profile
    from graphopt.rewrite.explain import Explanation
    from graphopt.runtime.devices import Device
    from graphopt.runtime.inputs.feeds import InputOptions
    from graphopt.runtime.once import Trial
    from graphopt.runtime.oracle.oracle import Oracle
    from graphopt.runtime.oracle.verdict import Verdict
    from graphopt.runtime.session import Optimizations
    from graphopt.specialize.build import Specialization, Specialized
    from graphopt.specialize.loaded import Bundle
    from graphopt.tune.tuned import Tune

__all__ = [
    "Report",
    "Result",
    "choose_device",
    "compile",
    "context_for",
    "copy",
    "explain",
    "is_bundle",
    "load",
    "load_model",
    "make_options",
    "make_pipeline",
    "optimize",
    "run",
    "save",
    "specialize",
    "try_out",
    "verify",
]


class Result(NamedTuple):
    """What :func:`optimize` returns: the optimized model, and what was done to it."""

    model: ir.Model
    report: Report

    @property
    def verdict(self) -> Verdict | None:
        """The comparison with the original; ``None`` if it was not made."""
        return self.report.verdict


def load(path: PathLike, *, allow_external: Sequence[PathLike] | None = None) -> ir.Model | Bundle:
    """Load what lies at ``path``: a model, as :func:`load_model` does, or a bundle of variants.

    A bundle is named by its folder, or by the ``plan.json`` in it. For type checkers, and to say where it is
    to run, there are :func:`load_model` and :class:`graphopt.Bundle`.

    Raises:
        UsageError: there is no such file.
        InvalidModel: it is neither, or it is damaged.
    """
    if not is_bundle(path):
        return load_model(path, allow_external=allow_external)
    from graphopt.specialize.loaded import Bundle

    return Bundle(path)


def load_model(path: PathLike, *, allow_external: Sequence[PathLike] | None = None) -> ir.Model:
    """Load a model from a file, whose suffix tells its form.

    ``.json`` is the JSON IR, ``.onnxjson`` onnx's own JSON, ``.onnxtxt`` and ``.txt`` are ONNX text,
    and everything else is ``.onnx``.

    External data is memory-mapped when it is first read. It has to lie in the model's folder, or
    in one of ``allow_external``.

    Raises:
        UsageError: there is no such file.
        InvalidModel: the file is not a model, is cut short, or its external data is missing.
    """
    if is_bundle(path):
        raise UsageError(
            f"{path} is a bundle, not a model",
            hint="graphopt run, inspect and verify take bundles; its models are the .onnx files in it",
        )
    allowed = config.current().allow_external if allow_external is None else allow_external
    return ir.load(path, allow_external=allowed)


def is_bundle(path: PathLike) -> bool:
    """Whether ``path`` names a bundle: its folder, or the ``plan.json`` in it."""
    from graphopt.specialize.bundle_plan import folder_of

    return folder_of(Path(path)) is not None


def save(model: ir.Model, path: PathLike, *, external_data: bool | None = None) -> list[Path]:
    """Write a model to ``path``, atomically; returns the files written, the model first.

    Args:
        model: the model; it is not changed.
        path: its suffix tells the form, as for :func:`load`.
        external_data: put large weights into a file beside the model. By default as the model
            came, and always above 2 GB or for the JSON IR.

    Raises:
        UsageError: ``path`` can't be written; nothing is left behind.
    """
    if external_data is None:
        external_data = config.current().external_data
    return ir.save(model, path, external_data=external_data)


def optimize(
    model: ir.Model | PathLike,
    *,
    pipeline: str | Sequence[Pass] | None = None,
    exact: bool | None = None,
    fast_math: bool | None = None,
    portable: bool | None = None,
    fold_limit: int | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    skip: Iterable[str] | None = None,
    only: Iterable[str] = (),
    pre_passes: Iterable[str | Pass] = (),
    post_passes: Iterable[str | Pass] = (),
    verify: bool | None = None,
    require_verified: bool | None = None,
    inputs: InputOptions | None = None,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    target_opset: int | None = None,
    strip_docs: bool = False,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    validate_each: bool = False,
    verify_each: bool = False,
    stop_after: int | None = None,
    weigh_each: bool = False,
    share_buffers: Iterable[tuple[str, str]] = (),
    instruments: Sequence[Watcher] = (),
    strict: bool = False,
    strict_fusion: Iterable[str] = (),
    save_repro: PathLike | None = None,
    command: Sequence[str] = (),
    tune: Tune | None = None,
) -> Result:
    """Make a model smaller and faster, and check that it still computes the same.

    Where it does not, or a pass fails, the rewrites at fault are found by bisection and left out
    (:attr:`Report.dropped`), unless ``strict`` forbids it.

    >>> model, report = optimize("model.onnx", exact=True)               # doctest: +SKIP
    >>> model, report = optimize(model, pipeline="dce,cse", verify=False)  # doctest: +SKIP

    Args:
        model: a model, which is left as it is, or the path of one.
        pipeline: a preset (``O0`` to ``O3``), the name of a pipeline, pipeline text, or passes.
        exact: only rewrites that keep every bit of the results, signed zeros and NaNs included.
        fast_math: also rewrites whose results are only close.
        portable: write only operators of the ONNX standard, none of onnxruntime's own.
        fold_limit: bytes that a folded constant may take, whatever it replaces.
        time_limit: seconds that folding and shape facts may take together; the rest stays as it is.
        memory_limit: bytes that folding may take, and what is risky to run when results are compared.
        skip: passes and rules that do not run.
        only: if given, the only rewrite rules that run.
        pre_passes, post_passes: passes to run first and last, or where the pipeline has places for them:
            objects, names, or ``package.module:Class``; passes of onnx-ir work too.
        verify: compare the result with the original in onnxruntime.
        require_verified: fail where ``verify`` can compare nothing, because the original does not run.
        inputs: how to feed the models for that; made up by default.
        dims: sizes that dynamic dims are fixed to, by symbol or as ``"x@0"``; the result takes no others.
        dim_ranges: first and last size (``None`` for no last) that dynamic dims will have; the result
            may be wrong for others.
        target_opset: version of the standard's operators to write the model for, before anything else.
        strip_docs: remove doc strings and exporters' notes on nodes.
        device: where they run: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_fallback: run on the CPU where the device can't be used.
        validate_each: check the structure of the model after each pass.
        verify_each: also compare its results with the original's after each pass that changed it.
        stop_after: make only so many rewrites, to find one that does harm.
        weigh_each: add up the weights after each pass, for the report.
        share_buffers: inputs, and outputs that the caller will write over them; that this is safe
            is checked before and after.
        instruments: told of passes, rewrites and refusals as they happen.
        strict: a result that is not the same is an error at once.
        strict_fusion: scopes, names of nodes or what the names of several begin with; that each became
            one fused operator is checked.
        save_repro: a folder for a reproducer of each rewrite that was dropped.
        command: the command line that led here, for the reproducers.
        tune: measure what rewrites give, and keep those that pay; session options that pay are
            recommended in the model's metadata.

    Raises:
        UsageError: a pass, rule or option is unknown.
        VerificationFailed: the result does not compute the same, or is called differently, and
            dropping a few rewrites does not help, or is not allowed; or sharing buffers is not safe.
        NotFused: a scope of ``strict_fusion`` did not become one fused operator.
        PassFailed: a pass fails, and leaving it out does not help, or is not allowed.
        RuntimeFailure: the original does not run with the ``inputs``, ``dims`` or ``dim_ranges`` given, or
            at all where ``require_verified`` is set.
    """
    if tune is not None and stop_after is not None:
        raise UsageError("only whole results are tuned: leave out stop_after")
    settings = _settings(
        pipeline=pipeline if isinstance(pipeline, str) else None,
        exact=exact,
        fast_math=fast_math,
        portable=portable,
        fold_limit=fold_limit,
        time_limit=time_limit,
        memory_limit=memory_limit,
        skip=None if skip is None else tuple(skip),
        verify=verify,
        require_verified=require_verified,
        allow_fallback=allow_fallback,
    )
    request = prepare(
        settings,
        pipeline=pipeline,
        pre_passes=pre_passes,
        post_passes=post_passes,
        only=only,
        inputs=inputs,
        dims=dims,
        dim_ranges=dim_ranges,
        target_opset=target_opset,
        strip_docs=strip_docs,
        share_buffers=share_buffers,
        device=device,
    )
    begin = time.perf_counter()
    candidate, original, size = working_copy(model)
    load_seconds = time.perf_counter() - begin
    scopes = _scopes(candidate, tuple(strict_fusion), request.passes)
    request = request.on(candidate)
    passes, options, inputs = request.passes, replace(request.options, strict_fusion=scopes), request.inputs
    original = copy(candidate) if dims else original
    with contextlib.ExitStack() as stack:
        oracle, remark = None, None
        if settings.verify or verify_each:
            for watcher in instruments:
                watcher.entered("starting onnxruntime")
            heavy = is_heavy(candidate, settings.memory_limit)
            oracle, remark = oracle_for(original, inputs, settings, device, heavy)
            stack.enter_context(oracle)
        job = Job(
            passes,
            options,
            oracle,
            settings.verify,
            validate_each,
            verify_each,
            stop_after,
            weigh_each,
            instruments,
            require_verified=settings.require_verified,
        )
        found = None
        if save_repro is not None:
            found = saver_for(Path(save_repro), original, job, inputs, settings, device, command)
        if tune is None:
            candidate, report = produce(job, candidate, original, found, repairs=not strict)
        else:
            pristine = candidate
            tuner = tuner_for(tune, inputs, device, settings)
            candidate, report = tuner.run(
                pristine,
                job,
                lambda job: produce(job, copy(pristine), original, found, repairs=not strict),
            )
    if size is not None:
        report.file_bytes = (size, None)
        report.seconds["load"] = load_seconds
    if remark and (device or settings.device) != "auto":
        report.remarks.append(remark)
    report.remarks += _assumed(dims, options)
    return Result(candidate, report)


def specialize(
    model: ir.Model | PathLike,
    how: Specialization,
    *,
    bundle: bool = False,
    pre_passes: Iterable[str | Pass] = (),
    strict: bool = False,
    inputs: InputOptions | None = None,
    **arguments: Any,
) -> Specialized:
    """Optimize a model, and variants of it for what a profile saw of its inputs.

    >>> found = specialize("model.onnx", Specialization(Profile.read("profile.json")))   # doctest: +SKIP
    >>> save(found.model, "model.opt.onnx")                                         # doctest: +SKIP

    Args:
        model: a model, which is left as it is, or the path of one.
        how: the profile, and how many variants are made of it.
        bundle: the result is to be a bundle, in which a guard costs next to nothing: hardly smaller variants
            are kept, too.
        pre_passes, strict, inputs: as for :func:`optimize`. Variants are verified with inputs made up.
        arguments: of :func:`optimize`, for the general model and each variant.

    Raises:
        UsageError: the profile is of another model; or as for :func:`optimize`.
        VerificationFailed: as for :func:`optimize`.
    """
    from graphopt.runtime.inputs.feeds import InputOptions
    from graphopt.specialize import build
    from graphopt.specialize.whole import joined

    original = loaded(model)
    chosen = {key: arguments.get(key) for key in ("exact", "fast_math", "verify", "allow_fallback")}
    settings, device = _settings(**chosen), arguments.get("device")

    def optimized(candidate: ir.Model, first: tuple[str, ...]) -> tuple[ir.Model, Report]:
        if candidate is original:
            return optimize(model, pre_passes=pre_passes, strict=strict, inputs=inputs, **arguments)
        return optimize(candidate, pre_passes=(*first, *pre_passes), strict=strict, **arguments)

    def judge(given: InputOptions) -> Oracle:
        return oracle_for(original, given, settings, device, is_heavy(original, settings.memory_limit))[0]

    limits = None if bundle else build.MODEL_LIMITS
    found = build.build(original, how, optimized, limits=limits, keep=bundle, strict=strict)
    if bundle:
        return found
    given, numerics = inputs or InputOptions(seed=settings.seed), make_options(settings).numerics
    whole = joined(found, how, judge if settings.verify else None, given, numerics, strict=strict)
    return replace(found, model=whole)


def compile(
    model: ir.Model | PathLike,
    options: ExecutorOptions | None = None,
    *,
    inputs: Nested | None = None,
    outputs: Nested | None = None,
    device: str | Device | None = None,
    threads: int | None = None,
    pipeline: str | None = None,
    verify: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
    **arguments: Any,
) -> Executor:
    """An executor, which runs a model and specializes it for the inputs that come.

    >>> executor = compile("model.onnx")                                    # doctest: +SKIP
    >>> executor({"ids": ids})["logits"]                                    # doctest: +SKIP

    Args:
        model: a model, or the path of one, which is read again after it was released.
        options: how the executor works.
        inputs, outputs: names, nested in dicts, lists and tuples as tensors are; by default dicts by name.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: inside one operator; by default onnxruntime's choice.
        pipeline: a preset or a pipeline; by default what :func:`graphopt.fuser` says, else ``O3``.
        verify: compare each plan with the original before it runs.
        clock: seconds, by which the original is released.
        arguments: others of :func:`optimize`, for all plans.

    Raises:
        UsageError: ``inputs`` or ``outputs`` name something else than the model has.
    """
    from graphopt.executor.executor import Executor, ExecutorOptions
    from graphopt.executor.plan import Host
    from graphopt.executor.structure import check_names
    from graphopt.executor.switches import current_fuser

    fuser = current_fuser()
    settings = _settings(verify=verify)
    text = pipeline or ("O3" if fuser is None else fuser.pipeline)
    host = Host(
        choose_device(device, settings)[0], threads, "default" if fuser is None else fuser.optimizations
    )
    path, in_memory = (None, [copy(model)]) if isinstance(model, ir.Model) else (model, [])
    del model  # an executor that releases it must be the last to hold it

    def load_original() -> ir.Model:
        if path is not None:
            return loaded(path)
        if not in_memory:
            raise UsageError(
                "the original was released, and came from no file", hint="compile the model from its path"
            )
        return in_memory.pop()

    def optimized(candidate: ir.Model, first: tuple[str, ...]) -> ir.Model:
        with config.using(settings):
            return optimize(candidate, pipeline=text, pre_passes=first, device=host.device, **arguments).model

    def prepared(candidate: ir.Model) -> ir.Model:
        with config.using(settings):
            return optimize(candidate, pipeline="fallback", verify=False).model

    executor = Executor(
        load_original,
        optimized,
        prepared,
        host,
        options or ExecutorOptions(),
        inputs=inputs,
        outputs=outputs,
        clock=clock,
    )
    check_names(inputs, [port.name for port in executor.signature.inputs], "input")
    check_names(outputs, [port.name for port in executor.signature.outputs], "output")
    return executor


def _scopes(model: ir.Model, scopes: Sequence[str], pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """The names of the nodes in each of ``scopes``, which ``pipeline`` is to fuse."""
    if not scopes:
        return {}
    from graphopt.debug.explain import names_within

    found = {scope: names_within(model, scope) for scope in scopes}
    if not any(step.name == "fuse-builtin" for step in pipeline.passes()):
        raise UsageError("nothing is fused, so no scope can be", hint="add -O3, which fuses operators")
    return found


def explain(
    model: ir.Model | PathLike,
    patterns: Sequence[str] = (),
    *,
    node: str | None = None,
    portable: bool | None = None,
    skip: Iterable[str] | None = None,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    target_opset: int | None = None,
    device: str | Device | None = None,
) -> Explanation:
    """Tell which nodes ``-O3`` would put into fused operators, and why not more of them.

    >>> explain("model.onnx", ["attention"]).missed[0].reason            # doctest: +SKIP
    'the mask is the same for all keys'

    Args:
        model: a model, which is left as it is, or the path of one.
        patterns: only rules of these names or families.
        node: only what concerns this node of the model, or the nodes in this scope.
        portable, skip, dims, dim_ranges, target_opset: as for :func:`optimize`.
        device: where the result is to run, whether it is there or not; it decides which operators pay.

    Raises:
        UsageError: no node or pattern bears the name.
    """
    from graphopt.debug.explain import explain_fusions

    settings = _settings(portable=portable, skip=None if skip is None else tuple(skip))
    request = prepare(
        settings,
        pipeline="",
        dims=dims,
        dim_ranges=dim_ranges,
        target_opset=target_opset,
        device=meant_device(device, settings),
    )
    candidate, _, _ = working_copy(model)
    request = request.on(candidate)
    return explain_fusions(candidate, request.options, patterns, node=node, before=request.passes.steps)


def _assumed(dims: Mapping[str, int] | None, options: Options) -> list[str]:
    """What the result relies on because the user said so."""
    told = []
    if dims:
        told.append(f"fixed as asked: {', '.join(f'{name} = {size}' for name, size in dims.items())}")
    if options.dim_ranges:
        from graphopt.runtime.inputs.dims import describe_range

        ranges = [describe_range(name, found) for name, found in options.dim_ranges.items()]
        told.append(f"relies on {', '.join(ranges)}: may be wrong for other sizes")
    return told


def verify(
    original: ir.Model | PathLike,
    candidate: ir.Model | PathLike,
    *,
    numerics: Numerics = Numerics.REASSOCIATES,
    inputs: InputOptions | None = None,
    dims: Mapping[str, int] | None = None,
    dim_ranges: Mapping[str, tuple[int, int | None]] | None = None,
    signature: bool = True,
    bits: bool = False,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
) -> Verdict:
    """Compare two models by running them: with onnxruntime's optimizations off, and at its defaults.

    >>> verdict = verify("model.onnx", "model.opt.onnx")     # doctest: +SKIP
    >>> verdict.ok, verdict.delta                            # doctest: +SKIP
    (True, 2.1e-06)

    Args:
        original, candidate: models, or paths of models.
        numerics: how far results may move.
        inputs: how to feed them; made up by default, in several shapes and kinds of numbers.
        dims: sizes of dynamic dims that are fixed in both first.
        dim_ranges: sizes of dynamic dims outside which they may differ.
        signature: they must be called alike, too.
        bits: demand identical outputs where onnxruntime's optimizations are off.
        device, allow_fallback: as for :func:`run`.

    Raises:
        UsageError: ``inputs`` does not fit the original, or a path leads nowhere.
        InvalidModel: a file is not a model.
    """
    from graphopt.runtime.inputs.dims import fix_dims

    settings = _settings(allow_fallback=allow_fallback)
    if dims or dim_ranges:
        original, candidate = (copy(loaded(model)) for model in (original, candidate))
        inputs = within(inputs, vouch(original, dims, dim_ranges), settings.seed)
        fix_dims(candidate, dims or {}, strict=False)  # they may be fixed there already
    heavy = is_heavy(loaded(original), settings.memory_limit)
    oracle, _ = oracle_for(original, inputs, settings, device, heavy)
    with oracle:
        return oracle.verify(loaded(candidate), numerics=numerics, signature=signature, bits=bits)


def run(
    model: ir.Model | PathLike,
    feeds: Mapping[str, Any],
    *,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    optimizations: Optimizations = "default",
    session_options: bool = True,
) -> dict[str, Any]:
    """Run a model through onnxruntime; returns its outputs by name, in the model's order.

    >>> outputs = run("model.onnx", {"x": np.zeros((1, 3), np.float32)})   # doctest: +SKIP

    Args:
        model: a model, or the path of one.
        feeds: a numpy array for each input (of ``ml_dtypes`` where numpy lacks the element
            type); sequences are lists, maps are dicts.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_fallback: run on the CPU where the device can't be used.
        optimizations: onnxruntime's own, ``default`` or ``off``.
        session_options: use those that the model's metadata recommends for the device.

    Raises:
        UsageError: an input is missing, or there is none of that name.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    from graphopt.runtime.once import run_once
    from graphopt.runtime.session_choice import recommended

    chosen, _ = choose_device(device, _settings(allow_fallback=allow_fallback))
    found = loaded(model)
    choice = recommended(found, chosen) if session_options else None
    return run_once(found, feeds, device=chosen, optimizations=optimizations, choice=choice)


def try_out(
    model: ir.Model | PathLike,
    inputs: InputOptions | None = None,
    *,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    optimizations: Optimizations = "default",
    session_options: bool = True,
) -> Trial:
    """Run a model on inputs that are made up to suit it, in shapes that it accepts.

    Args:
        model: a model, or the path of one.
        inputs: what is given: shapes, arrays in files, the seed.
        device, allow_fallback, optimizations, session_options: as for :func:`run`.

    Raises:
        UsageError: ``inputs`` does not fit the model.
        RuntimeFailure: the model runs on none of the inputs that were tried.
    """
    from graphopt.runtime import once
    from graphopt.runtime.inputs.feeds import InputOptions
    from graphopt.runtime.session_choice import recommended

    chosen, _ = choose_device(device, _settings(allow_fallback=allow_fallback))
    given = inputs or InputOptions(seed=config.current().seed)
    found = loaded(model)
    choice = recommended(found, chosen) if session_options else None
    return once.try_out(found, given, device=chosen, optimizations=optimizations, choice=choice)


def record_profile(
    model: ir.Model | PathLike,
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
        model: a model, or the path of one.
        runs: what to feed in each run: arrays by name, as for :func:`run`, or what is given of inputs that
            are made up else, whose contents are not recorded.
        requires_grad: inputs for which a gradient is wanted.
        device, allow_fallback: as for :func:`run`.

    Raises:
        UsageError: what is fed does not fit the model, or ``requires_grad`` names no input.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    from graphopt.specialize.record import Recorder

    chosen, _ = choose_device(device, _settings(allow_fallback=allow_fallback))
    with Recorder(loaded(model), device=chosen, requires_grad=requires_grad) as recorder:
        for given in runs:
            if isinstance(given, Mapping):
                recorder.run(given)
            else:
                recorder.make_up(given)
        return recorder.profile


def _settings(**given: Any) -> config.Settings:
    """The current settings with the arguments that were given."""
    return replace(config.current(), **{key: value for key, value in given.items() if value is not None})
