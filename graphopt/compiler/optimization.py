"""Optimize a model, and read the lineage of a result."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from graphopt import ir
from graphopt.compiler.check_shared_buffers import SharedBufferCheck
from graphopt.compiler.environment import Environment
from graphopt.compiler.record_settings import record_of, write_record
from graphopt.custom_rules import left_out
from graphopt.device_hints.model_hints import model_hints
from graphopt.diagnostics import record, tracer
from graphopt.errors import InvalidModel, NotFused, PassFailed, UsageError, VerificationFailed
from graphopt.fusion.kernel_library import Toolchain
from graphopt.instrument.lineage import KEY, Lineage, Recorder
from graphopt.instrument.report import Report
from graphopt.ir.signature import Signature
from graphopt.model_arguments import ModelLike, PathLike, copy, loaded, placement, save, to_proto
from graphopt.ops import graphopt_operators
from graphopt.optimization_attempt import Attempt, prepare
from graphopt.optimize_options import OptimizeOptions
from graphopt.ort.devices import CPU
from graphopt.ort.gpu_properties import gpu_properties
from graphopt.passes.base import FUSED_OPERATORS, NATIVE_GROUPS
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import make_pipeline
from graphopt.process import fork_server
from graphopt.util.argument_checks import checked
from graphopt.util.weight_placement import WeightPlacement

if TYPE_CHECKING:
    import onnx

    from graphopt.debug.culprit import Culprit
    from graphopt.fusion.kernel_library import Libraries
    from graphopt.verification.verdict import Verdict

#: Limit on the estimated time of runs, as a share of the limit on the time of verification, which should
#: add little to the cost of optimizing.
_ESTIMATED_SHARE = 1 / 40


class Result(NamedTuple):
    """The result of :func:`optimize`: an optimized model and its report; it unpacks as this pair.

    >>> model, report = graphopt.optimize("model.onnx")
    >>> graphopt.optimize("model.onnx").save("model.opt.onnx")
    [PosixPath('model.opt.onnx')]
    >>> proto = graphopt.optimize(onnx.load("model.onnx")).to_proto()
    """

    model: ir.Model
    report: Report

    @property
    def verdict(self) -> Verdict | None:
        """The comparison with the original; ``None`` without verification."""
        return self.report.verdict

    def __repr__(self) -> str:
        return f"Result({self.report.headline()}; it has .model, .report, .to_proto() and .save(path))"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    @checked
    def to_proto(self) -> onnx.ModelProto:
        """The optimized model as a new ``onnx.ModelProto`` (:func:`graphopt.to_proto`)."""
        return to_proto(self.model)

    @checked
    def save(
        self,
        path: PathLike,
        *,
        weights: WeightPlacement | None = None,
        external_data: bool | None = None,
    ) -> list[Path]:
        """Write the optimized model to ``path``; arguments and errors are those of :func:`graphopt.save`."""
        return save(self.model, path, weights=placement(weights, external_data))


@checked
def optimize(env: Environment, model: ModelLike, **options: Unpack[OptimizeOptions]) -> Result:
    """Make a model smaller and faster, and check that its results are the same.

    If the result differs, or a pass fails, bisection finds the rewrites at fault, which are dropped
    (:attr:`Report.dropped`) unless ``strict`` is set.

    >>> model, report = graphopt.optimize("model.onnx", exact=True)
    >>> model, report = graphopt.optimize(model, pipeline="dce,cse", verify=False)

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        options: declared in :class:`graphopt.optimize_options.OptimizeOptions`.

    Raises:
        UsageError: a pass, rule, fuser or option is unknown, or options exclude each other.
        VerificationFailed: the result computes different values, or has a different signature, and dropping
            rewrites does not help or is not allowed; or sharing buffers is not safe.
        NotFused: a scope of ``strict_fusion`` did not become one fused operator, or one kernel.
        PassFailed: a pass fails, and dropping it does not help or is not allowed.
        Exception: any exception that the caller's pass or rule raises, with a note that names the pass or
            rule.
        TypeError: ``model`` is not a model in an accepted form, or an object is not a pass or a rule.
        RuntimeFailure: the original does not run with the given ``inputs``, ``dims`` or ``dim_ranges``; or,
            with ``require_verified``, on any inputs.
    """
    env = env.having(options)
    if env.settings.cache:
        from graphopt.compiler.stored_results import stored_or_computed

        result = Result(*stored_or_computed(env, model, lambda: _recorded(env, model)))
    else:
        result = _recorded(env, model)
    env.created_graph("optimized-graph", result.model)
    return result


def _recorded(env: Environment, model: ModelLike) -> Result:
    """The optimized model, with its settings and its lineage in the metadata."""
    if env.options["provenance"]:
        recorder = Recorder()
        result = optimized(env.having({"instruments": (*env.options["instruments"], recorder)}), model)
        result.model.metadata_props[KEY] = Lineage.of(result.model, recorder).to_json()
    else:
        result = optimized(env, model)
    record = record_of(with_fuser(env))
    write_record(record, result.model)
    return Result(result.model, result.report.having(settings="" if record is None else record.to_json()))


@checked
def lineage(env: Environment, model: ModelLike, **options: Unpack[OptimizeOptions]) -> Lineage:
    """The original nodes of each node of a result, and the passes and rules between them.

    A result of ``optimize(provenance=True)`` contains its lineage. Any other ``model`` is the original,
    and is optimized without verification; the lineage is that of the result.

    >>> lineage = graphopt.lineage("model.onnx")
    >>> lineage.back("logits").originals
    ('MatMul(logits)',)

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        options: as for :func:`optimize`, for the run.

    Raises:
        InvalidModel: the recorded lineage is damaged.
        PassFailed: a pass fails.
    """
    loaded_model = env.load(model)
    found = Lineage.read(loaded_model)
    if found is not None:
        return found
    recorder = Recorder()
    env = env.having({**options, "verify": False, "strict": True})
    env = env.having({"instruments": (*env.options["instruments"], recorder)})
    return Lineage.of(optimized(env, loaded_model).model, recorder)


def optimized(
    env: Environment, model: ModelLike, weights: Sequence[str] = (), **options: Unpack[OptimizeOptions]
) -> Result:
    """As :func:`optimize`, for operations that report the graph themselves.

    Args:
        weights: names of initializers whose contents may change later; how constants of the result are
            computed from them is recorded (:func:`graphopt.ir.constant_graph_of`).
    """
    env = with_fuser(env.having(options))
    with record.recorded() as recorded:
        model, report = _optimized(env, model, weights)
    return Result(model, report.having(hints=recorded.hints, counters=recorded.counters))


def _optimized(env: Environment, model: ModelLike, weights: Sequence[str]) -> Result:
    chosen, settings = env.options, env.settings
    attempt = prepare(settings, **env.given)
    attempt = replace(attempt, instruments=env.instruments)
    verifies = settings.verify or chosen["verify_each"]
    if verifies and env.device.capabilities.forkable:
        fork_server.prepare()
    begin = time.perf_counter()
    candidate, original, size = env.working_copy(model)
    load_seconds = time.perf_counter() - begin
    _record_hints(env, candidate, attempt)
    scopes = _scopes(candidate, tuple(chosen["strict_fusion"]), attempt.pipeline)
    attempt = attempt.on(candidate)
    attempt = replace(attempt, options=replace(attempt.options, strict_fusion=scopes, weights=tuple(weights)))
    original = copy(candidate) if attempt.declares_dims or attempt.redefined else original
    sharing = SharedBufferCheck(env)
    unchecked = sharing.in_runtime(candidate) if sharing.pairs else None
    if sharing.pairs and unchecked is None:
        attempt = replace(attempt, check=sharing.in_runtime)
    with contextlib.ExitStack() as stack:
        if tracer.is_tracing():
            name = (
                os.fspath(model) if isinstance(model, str | os.PathLike) else candidate.graph.name or "graph"
            )
            stack.enter_context(tracer.graph(str(name), ir.count_nodes(candidate.graph)))
        if verifies:
            attempt.entered("starting onnxruntime")
            reference = chosen["reference"]
            if reference is not None and attempt.redefined:
                reference = copy(env.load(reference))
                attempt.redefine(reference)
            verifier = env.verifier(
                original if reference is None else reference,
                attempt.inputs,
                isolate=not env.device.capabilities.forkable and env.is_heavy(candidate),
                work=settings.verify_seconds * _ESTIMATED_SHARE,
                signature=None if reference is None else Signature.of(candidate),
                unchanged=None if attempt.changes_model or reference is not None else candidate,
            )
            attempt = replace(attempt, verifier=stack.enter_context(verifier), verify=settings.verify)
        toolchain = Toolchain(settings, attempt.options.device, tuple(chosen["instruments"]))
        attempt = replace(attempt, libraries=toolchain.paths)
        found = None
        if (folder := chosen["save_repro"]) is not None:
            from graphopt.debug.drop_faulty_rewrites import saving

            command = tuple(chosen["command"])
            record = record_of(env)
            data = None if record is None else record.to_dict()
            found = saving(Path(folder), env.load(original), attempt, settings, env.device, command, data)
        run = partial(_produce, original=original, found=found, repairs=not chosen["strict"])
        if (tune := chosen["tune"]) is None:
            candidate, report = run(attempt, candidate)
        else:
            from graphopt.tuning.tuner import Tuner

            tuner = Tuner(tune, attempt.inputs or env.inputs, env.device, env.store, env.toolchain)
            candidate, report = tuner.run(candidate, attempt, run)
    libraries = toolchain.libraries(candidate)
    _check_built(candidate, scopes, libraries)
    remarks = []
    if unchecked is not None:
        remarks.append(f"shared buffers are not checked in onnxruntime's own graph: {unchecked}")
    if attempt.verifier is not None and env.device_remark and chosen["device"] != "auto":
        remarks.append(env.device_remark)
    report = report.having(
        file_bytes=(size, None),
        seconds={} if size is None else {"load": load_seconds},
        kernels=libraries.kernels,
        libraries=libraries.paths,
        remarks=[
            *remarks,
            *attempt.redefined,
            *_stated_assumptions(attempt),
            *left_out(attempt.options, attempt.pipeline),
            *libraries.remarks,
        ],
    )
    report = report.having(remarks=_without_kernels(candidate, report, attempt.pipeline))
    return Result(candidate, report)


def _record_hints(env: Environment, model: ir.Model, attempt: Attempt) -> None:
    """Record the hints about ``model`` on the device for which it is optimized."""
    is_verified = bool(env.settings.verify)
    device = attempt.options.device or (env.device if is_verified else CPU)
    is_verified = is_verified and str(device) == str(env.device)
    for hint in model_hints(model, device, gpu_properties(device), is_verified=is_verified):
        record.hint(hint)


def with_fuser(env: Environment) -> Environment:
    """``env`` with the pipeline of the option ``fuser``, if given."""
    fuser = env.given.get("fuser")
    if fuser is None:
        return env
    from graphopt.executor.fusers import FUSERS, check_fuser

    return env.without("fuser").having({"pipeline": FUSERS[check_fuser(fuser)].pipeline})


def pipeline_provides(feature: str, env: Environment) -> bool:
    """Whether a pass of the pipeline that ``env`` selects provides ``feature``."""
    options = with_fuser(env).options
    pipeline = make_pipeline(options["pipeline"] or "", options["pre_passes"], options["post_passes"])
    return pipeline.provides(feature, skip=tuple(options["skip"] or ()))


def _produce(
    attempt: Attempt,
    candidate: ir.Model,
    *,
    original: ModelLike,
    found: Callable[[Culprit, int], None] | None = None,
    repairs: bool = True,
) -> tuple[ir.Model, Report]:
    """Run ``attempt``, and repair its result if necessary.

    Args:
        attempt: the pipeline and the checks of its result.
        candidate: the model to optimize in place.
        original: the same model in any form, for the repair.
        found: called with each culprit and its number, from 1.
        repairs: drop harmful rewrites; otherwise they are errors.

    Returns:
        ``candidate``, or a copy of ``original`` optimized without the culprits; and the report.
    """
    begin = time.perf_counter()
    try:
        return candidate, attempt.run(candidate)
    except (VerificationFailed, PassFailed) as failure:
        misuse = ir.find_misuse(loaded(original)) if isinstance(failure, PassFailed) else None
        if misuse is not None:  # passes can't handle an invalid model
            raise InvalidModel(f"the model breaks the rules of ONNX: {misuse}") from failure
        narrowing = attempt.verify_each or attempt.validate_each or attempt.stop_after is not None
        if not repairs or narrowing or isinstance(failure, NotFused):
            raise
        from graphopt.debug.drop_faulty_rewrites import repair

        result, report = repair(attempt, loaded(original), failure, found=found)
        seconds = time.perf_counter() - begin - sum(report.seconds.values())
        return result, report.having(seconds={"repair": seconds})


def _scopes(model: ir.Model, scopes: Sequence[str], pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """The names of the nodes in each of ``scopes`` that ``pipeline`` has to fuse."""
    if not scopes:
        return {}
    from graphopt.debug.explain_fusions import names_within

    found = {scope: names_within(model, scope) for scope in scopes}
    if not pipeline.provides(FUSED_OPERATORS, NATIVE_GROUPS):
        raise UsageError(
            "nothing is fused, so no scope can be",
            hint="add -O3, which fuses operators, or --fuser native, for kernels",
        )
    return found


def _check_built(model: ir.Model, scopes: Mapping[str, frozenset[str]], libraries: Libraries) -> None:
    """Check that the native groups created from ``scopes`` have kernels."""
    if not scopes:
        return
    from graphopt.rewrite.fused_operators import native_in

    for fused in native_in(model):
        if fused.op.rpartition(".")[2] in libraries.kernels:
            continue
        for scope, members in scopes.items():
            if any(name in members or ir.is_within(name, scope) for name in fused.origins):
                why = "; ".join(libraries.remarks) or "there is none for the device"
                raise NotFused(f"{scope!r} is one native group, but its kernel is missing: {why}")


def _without_kernels(model: ir.Model, report: Report, passes: Pipeline) -> list[str]:
    """A remark if ``passes`` create groups without kernels, unless a note has the reason."""
    ran = {record.name for record in report.passes}  # excludes passes of paths that did not run
    groups = any(NATIVE_GROUPS in step.provides for step in passes.passes() if step.name in ran)
    explained = any(note.startswith("no native groups") for note in report.notes())
    if not groups or explained or graphopt_operators.has_groups(model):
        return []
    tuning = report.tuning
    if tuning is not None and tuning.removed_kernels:
        return ["no kernel is left, so there is no library"]
    reason = "no kernel is expected to be faster than onnxruntime"
    return [f"no native groups: {reason} (graphopt explain MODEL --fuser native has the reasons)"]


def _stated_assumptions(attempt: Attempt) -> list[str]:
    """The user's guarantees that the result relies on."""
    dims, options, found = attempt.dims, attempt.options, []
    if dims:
        found.append(f"fixed as asked: {', '.join(f'{name} = {size}' for name, size in dims.items())}")
    facts = [f"{name} = {right}" for name, right in attempt.dim_relations.items()]
    if options.dim_ranges:
        from graphopt.inputs.dim_guarantees import describe_range

        facts += [describe_range(name, limits) for name, limits in options.dim_ranges.items()]
    if facts:
        found.append(f"relies on {', '.join(facts)}: may be wrong for other sizes")
    return found
