"""Run a model once: on given inputs, or on inputs generated to suit it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from graphopt import ir
from graphopt.errors import RuntimeFailure, UsageError, unknown
from graphopt.inputs.binding_search import find_valid_bindings
from graphopt.inputs.feeds import Feeds, InputOptions, Inputs
from graphopt.ir.signature import Signature
from graphopt.ort.crash_risks import crash_risk
from graphopt.ort.devices import CPU, Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.model_runs import RemoteRuns, Runner, Runs
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice
from graphopt.process.child import Child
from graphopt.util.ort_array_conversion import native_feeds, numpy_type

#: Checks the inputs of a run before it; raises UsageError.
Check = Callable[[Mapping[str, Any]], None]


class TimedRun(NamedTuple):
    """A run on generated inputs: the feeds, the outputs by name, and the duration in seconds."""

    feeds: Feeds
    outputs: dict[str, Any]
    seconds: float


def run_once(
    model: ir.Model,
    feeds: Mapping[str, Any],
    *,
    device: Device = CPU,
    optimizations: Optimizations = "default",
    choice: SessionChoice | None = None,
) -> dict[str, Any]:
    """The outputs of ``model`` by name, in its order.

    Raises:
        UsageError: an input is missing or unknown.
        RuntimeFailure: onnxruntime can't load or run the model.
    """
    signature = Signature.of(model)
    feeds = native_feeds(feeds)
    check_feeds(feeds, signature)
    check_dtypes(feeds, signature)
    with runner(model, device, choice) as runs:
        return named(signature, runs.run(optimizations, feeds))


def try_out(
    model: ir.Model,
    inputs: InputOptions,
    *,
    device: Device = CPU,
    optimizations: Optimizations = "default",
    typical: bool = False,
    choice: SessionChoice | None = None,
    check: Check | None = None,
) -> TimedRun:
    """Run ``model`` on generated inputs, in shapes that it accepts.

    With ``typical``, production shapes are preferred to small ones. ``check`` checks the inputs of each run
    before it.

    Raises:
        UsageError: ``inputs`` does not fit the model, or ``check`` refuses them.
        RuntimeFailure: the model runs on none of the inputs that were tried.
    """
    generator = Inputs(model, inputs)
    with runner(model, device, choice) as runs:
        return try_with(runs, generator, optimizations=optimizations, typical=typical, check=check)


def try_with(
    runs: Runner,
    generator: Inputs,
    *,
    optimizations: Optimizations = "default",
    typical: bool = False,
    check: Check | None = None,
) -> TimedRun:
    """:func:`try_out` with an existing runner and input generator."""
    trial: TimedRun | None = None

    def attempt(feeds: Feeds) -> str | None:
        nonlocal trial
        if check is not None:
            check(feeds)
        start = time.perf_counter()
        try:
            outputs = runs.run(optimizations, feeds)
        except RuntimeFailure as failure:
            return str(failure)
        trial = TimedRun(feeds, named(generator.signature, outputs), time.perf_counter() - start)
        return None

    runs.load(optimizations)  # a model that does not load is reported by its own error
    found = find_valid_bindings(generator, attempt, wanted=1, typical=typical)
    if trial is None:
        raise no_run(generator, found.refusal)
    return trial


def no_run(generator: Inputs, refusal: str | None) -> RuntimeFailure:
    """The error for a model that does not run on its inputs; ``refusal`` is onnxruntime's error."""
    given = generator.options.given
    return RuntimeFailure(
        f"the model does not run on the {'given' if given else 'generated'} inputs: {refusal}",
        hint="change the values of --input-shape and --input"
        if given
        else "set shapes with --input-shape NAME:1x3x224x224, or arrays with --input NAME:FILE.npy",
    )


@contextlib.contextmanager
def runner(model: ir.Model, device: Device = CPU, choice: SessionChoice | None = None) -> Iterator[Runner]:
    """A runner of ``model`` in a child; on other devices than the CPU only if the model may crash."""
    with contextlib.ExitStack() as stack:
        artifact = Artifact(model)
        stack.callback(artifact.close)
        if not device.capabilities.forkable and crash_risk(model) is None:
            yield Runs(artifact.source, device, choice=choice)
            return
        child = stack.enter_context(
            Child(preload=("graphopt.ort.model_runs",), fresh=not device.capabilities.forkable)
        )
        yield RemoteRuns(lambda: child, artifact.source, device, choice=choice)


def named(signature: Signature, outputs: list[Any]) -> dict[str, Any]:
    """``outputs`` by name."""
    return dict(zip((port.name for port in signature.outputs), outputs, strict=True))


def check_feeds(feeds: Mapping[str, Any], signature: Signature) -> None:
    """Raise UsageError if ``feeds`` lack an input or contain an unknown input."""
    types = signature.input_types
    for name in feeds:
        if name not in types:
            raise unknown("input", name, types)
    missing = [port.name for port in signature.fed if port.name not in feeds and port.kind != "optional"]
    if missing:
        raise UsageError(f"the model needs a value for input {missing[0]!r}")


def check_dtypes(feeds: Mapping[str, Any], signature: Signature) -> None:
    """Raise UsageError if an array lacks the element type of its input; onnxruntime's error names neither."""
    for port in signature.inputs:
        array, wanted = feeds.get(port.name), numpy_type(port.type)
        if not isinstance(array, (np.ndarray, np.generic)) or wanted is None or wanted.kind == "O":
            continue
        if array.dtype != wanted and array.dtype.kind != "V":
            raise UsageError(f"input {port.name!r} expects {wanted}, the array contains {array.dtype}")
