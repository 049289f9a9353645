"""Optimize a model, and explain what is fused and what is not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphopt import ir
from graphopt.api.files import save
from graphopt.assembly import (
    ModelLike,
    PathLike,
    chosen_settings,
    libraries_of,
    meant_device,
    produce,
    saver_for,
    tuner_for,
    verifier_for,
    working_copy,
)
from graphopt.context import Options
from graphopt.driver import Job, copy, is_heavy
from graphopt.errors import NotFused, UsageError
from graphopt.instrument.report import Report
from graphopt.ir.io.interop import PassBase
from graphopt.ir.signature import Signature
from graphopt.ops import dialects
from graphopt.own_rules import left_out
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pipeline import Pipeline
from graphopt.request import prepare
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    import onnx

    from graphopt.fusion.library import Libraries
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.rewrite.explain import Explanation
    from graphopt.rewrite.rule import Rule
    from graphopt.tuning.tuner import Tune
    from graphopt.verification.verdict import Verdict


class Result(NamedTuple):
    """The result of :func:`optimize`: an optimized model and a report, which it unpacks as.

    >>> model, report = graphopt.optimize("model.onnx")                  # doctest: +SKIP
    >>> graphopt.optimize("model.onnx").save("model.opt.onnx")           # doctest: +SKIP
    >>> proto = graphopt.optimize(proto).to_proto()                      # doctest: +SKIP
    """

    model: ir.Model
    report: Report

    @property
    def verdict(self) -> Verdict | None:
        """The comparison with the original; ``None`` if it was not made."""
        return self.report.verdict

    def __repr__(self) -> str:
        return f"Result({self.report.headline()}; it has .model, .report, .to_proto() and .save(path))"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    @checked()
    def to_proto(self) -> onnx.ModelProto:
        """The optimized model as a new ``onnx.ModelProto`` (:func:`graphopt.to_proto`)."""
        return ir.to_whole_proto(self.model)

    @checked()
    def save(self, path: PathLike, *, external_data: bool | None = None) -> list[Path]:
        """Write the optimized model to ``path``; arguments and errors are those of :func:`graphopt.save`."""
        return save(self.model, path, external_data=external_data)


@checked()
def optimize(
    model: ModelLike,
    *,
    pipeline: str | Sequence[str | Pass | PassBase] | None = None,
    exact: bool | None = None,
    fast_math: bool | None = None,
    portable: bool | None = None,
    fold_limit: int | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    skip: Iterable[str] | None = None,
    only: Iterable[str] = (),
    pre_passes: Iterable[str | Pass | PassBase] = (),
    post_passes: Iterable[str | Pass | PassBase] = (),
    rules: Iterable[Rule] = (),
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
    instruments: Sequence[PassInstrumentation] = (),
    strict: bool = False,
    strict_fusion: Iterable[str] = (),
    save_repro: PathLike | None = None,
    command: Sequence[str] = (),
    tune: Tune | None = None,
    fuser: str | None = None,
    reference: ModelLike | None = None,
) -> Result:
    """Make a model smaller and faster, and check that it still computes the same.

    Where it does not, or a pass fails, the rewrites at fault are found by bisection and left out
    (:attr:`Report.dropped`), unless ``strict`` forbids it.

    >>> model, report = optimize("model.onnx", exact=True)               # doctest: +SKIP
    >>> model, report = optimize(model, pipeline="dce,cse", verify=False)  # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
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
            objects, names, or ``package.module:name`` of a class or a rule; passes of onnx-ir work too.
        rules: rewrite rules of your own (:func:`graphopt.rewrite.rule`), which run along with graphopt's, in
            ``peephole`` unless they name another pass.
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
            one fused operator, or one native group, is checked.
        save_repro: a folder for a reproducer of each rewrite that was dropped.
        command: the command line that led here, for the reproducers.
        tune: measure what rewrites give, and keep those that pay; session options that pay are
            recommended in the model's metadata.
        fuser: in the place of ``pipeline``, who puts nodes together: ``none``, ``ort``, ``builtin``, or
            ``native``, for kernels that are compiled (:attr:`Report.libraries`).
        reference: the model to compare the result with; by default ``model`` as it was. It may differ in
            declared dims, as the general model of a specialization does.

    Raises:
        UsageError: a pass, rule, fuser or option is unknown, or both ``pipeline`` and ``fuser`` are given.
        VerificationFailed: the result does not compute the same, or is called differently, and
            dropping a few rewrites does not help, or is not allowed; or sharing buffers is not safe.
        NotFused: a scope of ``strict_fusion`` did not become one fused operator, or one kernel.
        PassFailed: a pass fails, and leaving it out does not help, or is not allowed.
        Exception: any that a pass or rule of your own raises, with a note that names it.
        TypeError: ``model`` is no form of a model, or an object is no pass or no rule.
        RuntimeFailure: the original does not run with the ``inputs``, ``dims`` or ``dim_ranges`` given, or
            at all where ``require_verified`` is set.
    """
    if tune is not None and stop_after is not None:
        raise UsageError("only whole results are tuned: leave out stop_after")
    if fuser is not None:
        from graphopt.executor.options import FUSERS, check_fuser

        if pipeline is not None:
            raise UsageError("fuser and pipeline exclude each other", hint="leave one of them out")
        pipeline = FUSERS[check_fuser(fuser)].pipeline
    settings = chosen_settings(
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
        rules=rules,
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
        verifier, remark = None, None
        if settings.verify or verify_each:
            for watcher in instruments:
                watcher.entered("starting onnxruntime")
            heavy = is_heavy(candidate, settings.memory_limit)
            signature = None if reference is None else Signature.of(candidate)
            verifier, remark = verifier_for(
                original if reference is None else reference, inputs, settings, device, heavy, signature
            )
            stack.enter_context(verifier)
        job = Job(
            passes,
            options,
            verifier,
            settings.verify,
            validate_each,
            verify_each,
            stop_after,
            weigh_each,
            instruments,
            require_verified=settings.require_verified,
            libraries=lambda model: libraries_of(model, settings, options.device, instruments).paths,
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
    report.remarks += left_out(options, passes)
    libraries = libraries_of(candidate, settings, options.device, instruments)
    report.kernels, report.libraries = libraries.kernels, libraries.paths
    report.remarks += libraries.remarks
    _check_built(candidate, scopes, libraries)
    report.remarks += _without_kernels(candidate, report, passes)
    return Result(candidate, report)


def _scopes(model: ir.Model, scopes: Sequence[str], pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """The names of the nodes in each of ``scopes``, which ``pipeline`` is to fuse."""
    if not scopes:
        return {}
    from graphopt.debug.explain import names_within

    found = {scope: names_within(model, scope) for scope in scopes}
    if not any(step.name in ("fuse-builtin", "fuse-groups") for step in pipeline.passes()):
        raise UsageError(
            "nothing is fused, so no scope can be",
            hint="add -O3, which fuses operators, or --fuser native, for kernels",
        )
    return found


def _check_built(model: ir.Model, scopes: Mapping[str, frozenset[str]], libraries: Libraries) -> None:
    """Check that native groups that ``scopes`` became have their kernels."""
    if not scopes:
        return
    from graphopt.rewrite.explain import native_in

    for fused in native_in(model):
        if fused.op.rpartition(".")[2] in libraries.kernels:
            continue
        for scope, members in scopes.items():
            if any(name in members or ir.is_within(name, scope) for name in fused.origins):
                why = "; ".join(libraries.remarks) or "there is none for the device"
                raise NotFused(f"{scope!r} is one native group, but its kernel is missing: {why}")


def _without_kernels(model: ir.Model, report: Report, passes: Pipeline) -> list[str]:
    """That there are no kernels, though ``passes`` were to make groups, unless the reason was told."""
    names = {step.name for step in passes.passes()}.difference(report.skipped)
    told = any(note.startswith("no native groups") for note in report.notes())
    if "fuse-groups" not in names or told or any(key[0] == dialects.NATIVE_DOMAIN for key in model.functions):
        return []
    tuning = report.tuning
    if tuning is not None and (tuning.kernels_reverted or tuning.decision.variant.original):
        return ["no kernel is left, so there is no library"]
    reason = "onnxruntime runs the nodes of the result as well without"
    return [f"no native groups: {reason} (graphopt partition --policy fusion --explain tells of each)"]


def _assumed(dims: Mapping[str, int] | None, options: Options) -> list[str]:
    """What the result relies on because the user said so."""
    told = []
    if dims:
        told.append(f"fixed as asked: {', '.join(f'{name} = {size}' for name, size in dims.items())}")
    if options.dim_ranges:
        from graphopt.inputs.dim_options import describe_range

        ranges = [describe_range(name, found) for name, found in options.dim_ranges.items()]
        told.append(f"relies on {', '.join(ranges)}: may be wrong for other sizes")
    return told


@checked()
def explain(
    model: ModelLike,
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
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        patterns: only rules of these names or families.
        node: only what concerns this node of the model, or the nodes in this scope.
        portable, skip, dims, dim_ranges, target_opset: as for :func:`optimize`.
        device: where the result is to run, whether it is there or not; it decides which operators pay.

    Raises:
        UsageError: no node or pattern bears the name.
    """
    from graphopt.debug.explain import explain_fusions

    settings = chosen_settings(portable=portable, skip=None if skip is None else tuple(skip))
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
