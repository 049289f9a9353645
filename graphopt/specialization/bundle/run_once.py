"""Run a bundle once, on given or generated inputs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from graphopt.inputs.feeds import InputOptions, Inputs
from graphopt.inputs.run_once import TimedRun, named, try_with
from graphopt.ort.crash_risks import crash_risk
from graphopt.ort.session import Optimizations
from graphopt.process.child import Child
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.names import GENERAL_NAME
from graphopt.specialization.shared_buffer_checks import shared_names
from graphopt.specialization.shared_buffer_runs import copies
from graphopt.util.ort_array_conversion import from_ort_value


def run_bundle_once(bundle: Bundle, inputs: InputOptions, pairs: Iterable[tuple[str, str]] = ()) -> TimedRun:
    """Run ``bundle`` in a child process; on devices other than the CPU only if its model may crash.

    The reported time is that of a second run, with an existing session.

    Args:
        bundle: the bundle.
        inputs: options of its inputs.
        pairs: inputs, and the outputs that are written over them in the second run.

    Raises:
        UsageError: ``inputs`` do not fit the model, or buffers can't be shared.
        VerificationFailed: an output may overwrite elements of an input before they are read.
        RuntimeFailure: the model fails on all generated inputs.
    """
    share = shared_names(pairs, bundle.signature)
    general = bundle.model(GENERAL_NAME)
    in_child = bundle.device.capabilities.forkable or crash_risk(general) is not None
    with _runner(bundle, in_child=in_child) as runs:
        trial = try_with(runs, Inputs(general, inputs))
        if share:
            return runs.run_shared(trial.feeds, share)
        begin = time.perf_counter()
        outputs = runs.run("default", trial.feeds)
        seconds = time.perf_counter() - begin
    return TimedRun(trial.feeds, named(bundle.signature, outputs), seconds)


class _Runs:
    """A :class:`Runner` of a bundle, which ignores the given optimization level."""

    def __init__(self, bundle: Bundle) -> None:
        self.seconds: float | None = None
        self.spent = 0.0
        self._bundle = bundle

    def load(self, level: Optimizations) -> None:
        self._bundle.session(GENERAL_NAME)

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        return [*self._bundle.run(feeds).values()]

    def run_shared(self, feeds: Mapping[str, Any], share: Mapping[str, str]) -> TimedRun:
        """Run the bundle with outputs written over inputs."""
        values = copies(feeds, self._bundle.signature, self._bundle.device)
        begin = time.perf_counter()
        found = self._bundle.run_bound(values, share=share)
        seconds = time.perf_counter() - begin
        return TimedRun(dict(feeds), {name: from_ort_value(value) for name, value in found.items()}, seconds)


class _RemoteRuns:
    """A :class:`Runner` of a bundle in a child process, which is restarted after a crash."""

    def __init__(self, child: Child, bundle: Bundle) -> None:
        self.seconds: float | None = None
        self.spent = 0.0
        self._child = child
        self._bundle = bundle

    def load(self, level: Optimizations) -> None:
        if not (self._child.made and self._child.alive):
            self._child.new(_Runs, self._bundle)
        self._child.invoke("load", level, doing="loading the model")

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        self.load(level)
        outputs: list[Any] = self._child.invoke("run", level, dict(feeds), timeout=self.seconds)
        return outputs

    def run_shared(self, feeds: Mapping[str, Any], share: Mapping[str, str]) -> TimedRun:
        """Run the bundle with outputs written over inputs."""
        self.load("default")
        found: TimedRun = self._child.invoke("run_shared", dict(feeds), dict(share), timeout=self.seconds)
        return found


@contextlib.contextmanager
def _runner(bundle: Bundle, *, in_child: bool) -> Iterator[_Runs | _RemoteRuns]:
    if not in_child:
        yield _Runs(bundle)
        return
    with Child(
        preload=("graphopt.specialization.bundle.run_once",), fresh=not bundle.device.capabilities.forkable
    ) as child:
        yield _RemoteRuns(child, bundle)
