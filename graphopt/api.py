"""The Python interface: load, optimize, verify, run, save.

>>> import graphopt
>>> model, report = graphopt.optimize(graphopt.load("model.onnx"))   # doctest: +SKIP
>>> print(report)                                                    # doctest: +SKIP
>>> graphopt.save(model, "model.opt.onnx")                           # doctest: +SKIP

Arguments that are settings too (see :class:`graphopt.config.Settings`) default to the settings
in force: those of the nearest ``graphopt.toml``, of the environment, or of
:func:`graphopt.config.patch`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graphopt import config, ir
from graphopt.analysis.shapes import ShapeFacts
from graphopt.context import Action, Context, Observer, Options
from graphopt.errors import RuntimeFailure, UsageError, VerificationFailed, unknown
from graphopt.instrument.base import Watcher
from graphopt.instrument.report import Report
from graphopt.instrument.stats import Stats
from graphopt.instrument.stop_after import StopAfter
from graphopt.instrument.summary import Interface, Summary, external_bytes
from graphopt.instrument.verify_each import VerifyEach
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Pipeline, Step
from graphopt.pipelines import registry

if TYPE_CHECKING:
    from graphopt.runtime.devices import Device
    from graphopt.runtime.inputs import InputOptions
    from graphopt.runtime.oracle import Oracle
    from graphopt.runtime.session import Optimizations
    from graphopt.runtime.signature import Signature
    from graphopt.runtime.trial import Runs
    from graphopt.runtime.verdict import Verdict

PathLike = str | os.PathLike[str]


class Result(NamedTuple):
    """What :func:`optimize` returns: the optimized model, and what was done to it."""

    model: ir.Model
    report: Report

    @property
    def verdict(self) -> Verdict | None:
        """The comparison with the original; ``None`` if it was not made."""
        return self.report.verdict


def load(path: PathLike, *, allow_external: Sequence[PathLike] | None = None) -> ir.Model:
    """Load a model from ``.onnx``, or from ONNX text (``.onnxtxt``, ``.txt``).

    External data is memory-mapped when it is first read. It has to lie in the model's folder, or
    in one of ``allow_external``.

    Raises:
        UsageError: there is no such file.
        InvalidModel: the file is not a model, is cut short, or its external data is missing.
    """
    allowed = config.current().allow_external if allow_external is None else allow_external
    return ir.load(path, allow_external=allowed)


def save(model: ir.Model, path: PathLike, *, external_data: bool | None = None) -> list[Path]:
    """Write a model to ``path``, atomically; returns the files written, the model first.

    Args:
        model: the model; it is not changed.
        path: ``.onnxtxt`` and ``.txt`` write ONNX text.
        external_data: put large weights into a file beside the model. By default as the model
            came, and always above 2 GB.

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
    fold_limit: int | None = None,
    skip: Iterable[str] | None = None,
    only: Iterable[str] = (),
    pre_passes: Iterable[str | Pass] = (),
    post_passes: Iterable[str | Pass] = (),
    verify: bool | None = None,
    inputs: InputOptions | None = None,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    verify_each: bool = False,
    check_each: bool = False,
    stop_after: int | None = None,
    weigh_each: bool = False,
    instruments: Sequence[Watcher] = (),
) -> Result:
    """Make a model smaller and faster, and check that it still computes the same.

    >>> model, report = optimize("model.onnx", exact=True)               # doctest: +SKIP
    >>> model, report = optimize(model, pipeline="dce,cse", verify=False)  # doctest: +SKIP

    Args:
        model: a model, which is left as it is, or the path of one.
        pipeline: a preset (``O0`` to ``O2``), the name of a pipeline, pipeline text, or passes.
        exact: only rewrites that keep every bit of the results, signed zeros and NaNs included.
        fast_math: also rewrites whose results are only close.
        fold_limit: bytes that a folded constant may take, whatever it replaces.
        skip: passes and rules that do not run.
        only: if given, the only rewrite rules that run.
        pre_passes, post_passes: passes to run first and last: objects, names, or
            ``package.module:Class``; passes of onnx-ir work too.
        verify: compare the result with the original in onnxruntime.
        inputs: how to feed the models for that; made up by default.
        device: where they run: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_fallback: run on the CPU where the device can't be used.
        verify_each: check the structure of the model after each pass.
        check_each: also compare its results with the original's after each pass that changed it.
        stop_after: make only so many rewrites, to find one that does harm.
        weigh_each: add up the weights after each pass, for the report.
        instruments: told of passes, rewrites and refusals as they happen.

    Raises:
        UsageError: a pass, rule or option is unknown.
        VerificationFailed: the result does not compute the same, or is called differently.
    """
    settings = _settings(
        pipeline=pipeline if isinstance(pipeline, str) else None,
        exact=exact,
        fast_math=fast_math,
        fold_limit=fold_limit,
        skip=None if skip is None else tuple(skip),
        verify=verify,
        allow_fallback=allow_fallback,
    )
    steps = settings.pipeline if pipeline is None or isinstance(pipeline, str) else pipeline
    passes = make_pipeline(steps, pre_passes, post_passes)
    options = make_options(settings, only)
    begin = time.perf_counter()
    candidate, original, file_bytes = _take(model)
    seconds = {"load": time.perf_counter() - begin} if file_bytes is not None else {}
    before, interface = Summary.of(candidate), Interface.of(candidate)
    stats, gate = Stats(by_pass=weigh_each), None if stop_after is None else StopAfter(stop_after)
    watchers: list[Watcher] = [stats, *instruments]

    with contextlib.ExitStack() as stack:
        oracle: Oracle | None = None
        remark: str | None = None
        if settings.verify or check_each:
            _tell(watchers, "starting onnxruntime")
            oracle, remark = _oracle(original, inputs, settings, device)
            stack.enter_context(oracle)
        if verify_each or check_each:
            watchers.append(VerifyEach(oracle if check_each else None, options.numerics))
        begin = time.perf_counter()
        cx = context_for(candidate, options, gate=gate, observers=watchers)
        stack.callback(cx.evaluator.close)
        try:
            done = passes.run(candidate, cx, watchers)
        except Exception as error:
            error.add_note(f"in pass {stats.running}")
            raise
        seconds["optimize"] = time.perf_counter() - begin
        report = Report(
            done.pipeline,
            before,
            Summary.of(candidate),
            interface,
            done.records,
            done.planned,
            done.skipped,
            stats.rewrites,
            stats.refusals,
            next_action=gate.first_denied if gate else None,
            seconds=seconds,
            file_bytes=(file_bytes, None),
            weight_bytes=stats.weight_bytes,
        )
        _check_interface(interface, Interface.of(candidate))
        if oracle is not None and settings.verify:
            _tell(watchers, "verifying")
            report.verdict = oracle.verify(candidate, numerics=options.numerics)
            if remark and (device or settings.device) != "auto":
                report.remarks.append(remark)
            seconds["verify"] = report.verdict.seconds
            if not report.verdict.ok:
                raise VerificationFailed(
                    f"the optimized model is not the same: {report.verdict.summary()}",
                    hint="--check-each names the pass at fault; --skip leaves it out",
                )
    return Result(candidate, report)


def verify(
    original: ir.Model | PathLike,
    candidate: ir.Model | PathLike,
    *,
    numerics: Numerics = Numerics.REASSOCIATES,
    inputs: InputOptions | None = None,
    signature: bool = True,
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
        signature: they must be called alike, too.
        device, allow_fallback: as for :func:`run`.

    Raises:
        UsageError: ``inputs`` does not fit the original, or a path leads nowhere.
        InvalidModel: a file is not a model.
    """
    oracle, _ = _oracle(original, inputs, _settings(allow_fallback=allow_fallback), device)
    with oracle:
        other = load(candidate) if isinstance(candidate, str | os.PathLike) else candidate
        return oracle.verify(other, numerics=numerics, signature=signature)


class Trial(NamedTuple):
    """A run of a model on made-up inputs: what was fed, what came out, and how long the run took."""

    feeds: dict[str, Any]
    outputs: dict[str, Any]
    seconds: float


def run(
    model: ir.Model | PathLike,
    feeds: Mapping[str, Any],
    *,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    optimizations: Optimizations = "default",
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

    Raises:
        UsageError: an input is missing, or there is none of that name.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    with _runnable(model, device, allow_fallback) as (runs, signature):
        _check_feeds(feeds, signature)
        return dict(zip(_output_names(signature), runs.run(optimizations, feeds), strict=True))


def try_out(
    model: ir.Model | PathLike,
    inputs: InputOptions | None = None,
    *,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
    optimizations: Optimizations = "default",
) -> Trial:
    """Run a model on inputs that are made up to suit it, in shapes that it accepts.

    Args:
        model: a model, or the path of one.
        inputs: what is given: shapes, arrays in files, the seed.
        device, allow_fallback, optimizations: as for :func:`run`.

    Raises:
        UsageError: ``inputs`` does not fit the model.
        RuntimeFailure: the model runs on none of the inputs that were tried.
    """
    from graphopt.runtime.inputs import InputOptions, Inputs
    from graphopt.runtime.search import find_legal

    loaded = load(model) if isinstance(model, str | os.PathLike) else model
    trial: Trial | None = None

    with _runnable(loaded, device, allow_fallback) as (runs, signature):

        def attempt(feeds: dict[str, Any]) -> str | None:
            nonlocal trial
            start = time.perf_counter()
            try:
                outputs = runs.run(optimizations, feeds)
            except RuntimeFailure as failure:
                return str(failure)
            seconds = time.perf_counter() - start
            trial = Trial(feeds, dict(zip(_output_names(signature), outputs, strict=True)), seconds)
            return None

        runs.session(optimizations)
        options = inputs or InputOptions(seed=config.current().seed)
        found = find_legal(Inputs(loaded, options), attempt, wanted=1)
    if trial is None:
        raise RuntimeFailure(
            f"the model does not run on made-up inputs: {found.refusal}",
            hint="give shapes with --input-shape NAME:1,3,224,224, or arrays with --input NAME:FILE.npy",
        )
    return trial


@contextlib.contextmanager
def _runnable(
    model: ir.Model | PathLike, device: str | Device | None, allow_fallback: bool | None
) -> Iterator[tuple[Runs, Signature]]:
    from graphopt.runtime.artifact import Artifact
    from graphopt.runtime.signature import Signature
    from graphopt.runtime.trial import Runs

    chosen, _ = choose_device(device, _settings(allow_fallback=allow_fallback))
    artifact = Artifact(load(model) if isinstance(model, str | os.PathLike) else model)
    try:
        yield Runs(artifact.source, chosen), Signature.of(artifact.model())
    finally:
        artifact.close()


def _output_names(signature: Signature) -> list[str]:
    return [port.name for port in signature.outputs]


def _check_feeds(feeds: Mapping[str, Any], signature: Signature) -> None:
    names = [port.name for port in signature.inputs if port.role != "constant"]
    for name in feeds:
        if name not in names:
            raise unknown("input", name, names, f"inputs: {', '.join(names) or 'none'}")
    missing = [port.name for port in signature.fed if port.name not in feeds and port.kind != "optional"]
    if missing:
        raise UsageError(f"the model needs a value for input {missing[0]!r}")


def copy(model: ir.Model) -> ir.Model:
    """A copy of ``model`` that shares its tensors, which nobody edits in place."""
    other = model.clone()
    other.meta.update(model.meta)
    return other


def make_pipeline(
    pipeline: str | Sequence[Pass],
    pre_passes: Iterable[str | Pass] = (),
    post_passes: Iterable[str | Pass] = (),
) -> Pipeline:
    """A pipeline from its name or text, or from passes, with further passes at both ends.

    Raises:
        UsageError: a pass is unknown, or the text is malformed.
    """
    known = registry()
    missing = {
        name: "not built yet" for name in ("canonicalize", "remove-expands") if name not in known.passes
    }
    known.planned = {**known.planned, **missing}
    middle = Pipeline.parse(pipeline, known) if isinstance(pipeline, str) else Pipeline(tuple(pipeline))
    first, last = ([step for item in items for step in _steps(item)] for items in (pre_passes, post_passes))
    return Pipeline((*first, *middle.steps, *last))


def make_options(settings: config.Settings, only: Iterable[str] = ()) -> Options:
    """What passes may do under ``settings``.

    Raises:
        UsageError: the settings contradict each other, or name an unknown pass or rule.
    """
    if settings.exact and settings.fast_math:
        raise UsageError("--exact and --fast-math exclude each other")
    numerics = Numerics.REASSOCIATES
    if settings.exact or settings.pipeline == "O1":
        numerics = Numerics.EXACT
    elif settings.fast_math:
        numerics = Numerics.APPROXIMATES
    only = frozenset(only)
    _check_names(settings.skip, only)
    return Options(
        numerics=numerics, fold_limit=settings.fold_limit, skip=frozenset(settings.skip), only=only or None
    )


def context_for(
    model: ir.Model,
    options: Options | None = None,
    *,
    gate: Callable[[Action], bool] | None = None,
    observers: Sequence[Observer] = (),
) -> Context:
    """Everything that passes need to work on ``model``.

    >>> cx = context_for(model)                               # doctest: +SKIP
    >>> Pipeline.parse("dce", registry()).run(model, cx)      # doctest: +SKIP
    """
    from graphopt.runtime.evaluate import Evaluator
    from graphopt.runtime.target import Target

    edit = ir.Editor(model)
    facts = ShapeFacts(model, constant=ir.constant_of, version=edit.scopes.version)
    edit.listeners.append(facts)
    evaluator = Evaluator.of(model, edit.scopes)
    return Context(model, edit, facts, Target(), evaluator, options or Options(), gate, list(observers))


def _take(model: ir.Model | PathLike) -> tuple[ir.Model, ir.Model | PathLike, int | None]:
    """What is to be changed, what it is compared with, and the bytes of its files if it comes from some."""
    if isinstance(model, ir.Model):
        return copy(model), model, None
    loaded = load(model)
    size = os.stat(model).st_size + sum(external_bytes(loaded).values())
    # onnxruntime reads the original's file itself, unless it could not
    readable = Path(model).suffix == ".onnx" and not config.current().allow_external
    return (loaded, model, size) if readable else (copy(loaded), loaded, size)


def _oracle(
    original: ir.Model | PathLike,
    inputs: InputOptions | None,
    settings: config.Settings,
    device: str | Device | None,
) -> tuple[Oracle, str | None]:
    """The judge of what becomes of ``original``, and a remark about the device."""
    from graphopt.runtime.inputs import InputOptions
    from graphopt.runtime.oracle import Oracle

    chosen, remark = choose_device(device, settings)
    options = inputs or InputOptions(seed=settings.seed)
    return Oracle(original, options=options, device=chosen, allow_external=settings.allow_external), remark


def choose_device(
    device: str | Device | None = None, settings: config.Settings | None = None
) -> tuple[Device, str | None]:
    """The device to run on, and a remark if it is not what was hoped for.

    Raises:
        UsageError: ``device`` names none.
        RuntimeFailure: it can't be used, and running on the CPU instead is not allowed.
    """
    from graphopt.runtime.devices import Device, choose

    if isinstance(device, Device):
        return device, None
    settings = settings or config.current()
    return choose(device or settings.device, allow_fallback=settings.allow_fallback)


def _tell(watchers: Iterable[Watcher], stage: str) -> None:
    for watcher in watchers:
        watcher.entered(stage)


def _settings(**given: Any) -> config.Settings:
    """The current settings with the arguments that were given."""
    return replace(config.current(), **{key: value for key, value in given.items() if value is not None})


def _check_names(skip: Iterable[str], only: Iterable[str]) -> None:
    if not skip and not only:
        return
    from graphopt.rules import all_rules

    rules = [rule.name for rule in all_rules()]
    for name in sorted(only):
        if name not in rules:
            raise unknown("rule", name, rules, "graphopt passes peephole lists all")
    known = [*registry().passes, *rules]
    for name in skip:
        if name not in known:
            raise unknown("pass or rule", name, known, "graphopt passes lists all")


def _steps(item: str | Pass) -> Sequence[Step]:
    """The pass, or what a name, pipeline text or ``module:Class`` stands for."""
    if isinstance(item, Pass):
        return [item]
    if re.fullmatch(r"[\w.]+:\w+", item):
        from graphopt.passes.onnx_ir import load_pass

        return [load_pass(item)]
    return Pipeline.parse(item, registry()).steps


def _check_interface(before: Interface, after: Interface) -> None:
    """A model that is called differently is wrong, whatever it computes."""
    from graphopt.runtime.signature import diff

    changes = diff(before.signature, after.signature)
    if changes:
        raise VerificationFailed(f"the optimized model is called differently: {changes[0]}")
