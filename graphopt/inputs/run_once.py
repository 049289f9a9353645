"""Run a model once: on given inputs, or on inputs that are made up to suit it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from graphopt import ir
from graphopt.errors import RuntimeFailure, UsageError, unknown
from graphopt.inputs.feeds import Feeds, InputOptions, Inputs
from graphopt.inputs.search import find_valid_bindings
from graphopt.ir.signature import Signature
from graphopt.ort.artifact import Artifact
from graphopt.ort.devices import CPU, Device
from graphopt.ort.probe import RemoteRuns, Runner, Runs
from graphopt.ort.risks import may_crash
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice
from graphopt.process.child import Child
from graphopt.util.element_types import native_feeds, numpy_type


class TimedRun(NamedTuple):
    """A run on made-up inputs: what was fed, what came out, and how long the run took."""

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
        UsageError: an input is missing, or there is none of that name.
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
) -> TimedRun:
    """Run ``model`` on inputs that are made up, in shapes that it accepts.

    With ``typical``, shapes that users run are preferred to small ones.

    Raises:
        UsageError: ``inputs`` does not fit the model.
        RuntimeFailure: the model runs on none of the inputs that were tried.
    """
    maker = Inputs(model, inputs)
    with runner(model, device, choice) as runs:
        return try_with(runs, maker, optimizations=optimizations, typical=typical)


def try_with(
    runs: Runner, maker: Inputs, *, optimizations: Optimizations = "default", typical: bool = False
) -> TimedRun:
    """The same on what is there already: a session, and what makes inputs for the model."""
    trial: TimedRun | None = None

    def attempt(feeds: Feeds) -> str | None:
        nonlocal trial
        start = time.perf_counter()
        try:
            outputs = runs.run(optimizations, feeds)
        except RuntimeFailure as failure:
            return str(failure)
        trial = TimedRun(feeds, named(maker.signature, outputs), time.perf_counter() - start)
        return None

    runs.load(optimizations)  # a model that does not load is reported by its own error
    found = find_valid_bindings(maker, attempt, wanted=1, typical=typical)
    if trial is None:
        given = maker.options.given
        raise RuntimeFailure(
            f"the model does not run on {'the' if given else 'made-up'} inputs"
            f"{' given' if given else ''}: {found.refusal}",
            hint="change what --input-shape and --input say"
            if given
            else "give shapes with --input-shape NAME:1x3x224x224, or arrays with --input NAME:FILE.npy",
        )
    return trial


@contextlib.contextmanager
def runner(model: ir.Model, device: Device = CPU, choice: SessionChoice | None = None) -> Iterator[Runner]:
    """Runs ``model`` in a child; on other devices than the CPU only if it may crash."""
    with contextlib.ExitStack() as stack:
        artifact = Artifact(model)
        stack.callback(artifact.close)
        if device.kind != "cpu" and may_crash(model) is None:
            yield Runs(artifact.source, device, choice=choice)
            return
        child = stack.enter_context(Child(preload=("graphopt.ort.probe",), fresh=device.kind != "cpu"))
        yield RemoteRuns(lambda: child, artifact.source, device, choice=choice)


def named(signature: Signature, outputs: list[Any]) -> dict[str, Any]:
    """``outputs`` by name."""
    return dict(zip((port.name for port in signature.outputs), outputs, strict=True))


def check_feeds(feeds: Mapping[str, Any], signature: Signature) -> None:
    """Raise UsageError if ``feeds`` lack an input, or have another."""
    names = [port.name for port in signature.inputs if port.role != "constant"]
    for name in feeds:
        if name not in names:
            raise unknown("input", name, names)
    missing = [port.name for port in signature.fed if port.name not in feeds and port.kind != "optional"]
    if missing:
        raise UsageError(f"the model needs a value for input {missing[0]!r}")


def check_dtypes(feeds: Mapping[str, Any], signature: Signature) -> None:
    """Raise UsageError if an array is of another element type than its input; onnxruntime names neither."""
    for port in signature.inputs:
        array, wanted = feeds.get(port.name), numpy_type(port.type)
        if not isinstance(array, (np.ndarray, np.generic)) or wanted is None or wanted.kind == "O":
            continue
        if array.dtype != wanted and array.dtype.kind != "V":
            raise UsageError(f"input {port.name!r} wants {wanted}, the array holds {array.dtype}")
