"""Run a model so that watched intermediate values are observed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from graphopt import ir
from graphopt.context import context_for
from graphopt.inputs import run_once
from graphopt.inputs.feeds import InputOptions, Inputs
from graphopt.ir.signature import Signature
from graphopt.model_arguments import copy
from graphopt.ort.devices import CPU, Device
from graphopt.profile import ValueProfile
from graphopt.specialization.instrumented_model import Observed, lower_profiling_nodes
from graphopt.transforms.autodiff.profile_autograd_zero import ProfileAutogradZero
from graphopt.transforms.profile.instrument import Instrument, Watch
from graphopt.transforms.profile.remove_profile_nodes import RemoveProfileNodes
from graphopt.util.ort_array_conversion import native_feeds

if TYPE_CHECKING:
    from graphopt.ort.model_runs import Runner


class InstrumentedRun(NamedTuple):
    """One run: its feeds, which include the given ones, and the observed values."""

    feeds: Mapping[str, Any]
    given: Mapping[str, Any]
    observed: Observed


class InstrumentedRuns:
    """Runs a model whose watched values are additional outputs.

    onnxruntime's optimizations are off, so that intermediate values exist; a model that may crash the process
    runs in a child. If there are many watched values, several models observe a part each.

    Args:
        model: the model, which is not modified.
        device: the device to run it on.
        watch: the values to observe.
        limit: observe only the first ``limit`` intermediate values.

    Attributes:
        watched: the number of observed intermediate values.
        left_out: the number of candidates that are not observed.
    """

    def __init__(
        self, model: ir.Model, device: Device = CPU, watch: Watch = Watch.SHAPES, limit: int = 1024
    ) -> None:
        extended = copy(model)
        if extended.ir_version < ir.FUNCTIONS_SINCE:  # profiling nodes are calls of functions
            ir.Editor(extended).raise_ir_version(ir.FUNCTIONS_SINCE)
        pass_ = Instrument(watch, limit)
        with context_for(extended) as cx:
            RemoveProfileNodes().run(extended, cx)  # the file may be an instrumented model
            found = pass_.select(extended, cx)
            pass_.run(extended, cx)
            ProfileAutogradZero().run(extended, cx)
        self._parts = lower_profiling_nodes(extended)
        self.watched, self.left_out = len(found.inner), len(found.left_out)
        self._device = device
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, feeds: Mapping[str, Any]) -> InstrumentedRun:
        """Run the model on ``feeds``, as for :func:`graphopt.run`.

        Raises:
            UsageError: an input is missing or unknown, or has another element type.
            RuntimeFailure: the model fails on ``feeds``.
        """
        signature = Signature.of(self._parts[0].model)
        feeds = native_feeds(feeds)
        run_once.check_feeds(feeds, signature)
        run_once.check_dtypes(feeds, signature)
        outputs = run_once.named(signature, self._runners[0].run("off", feeds))
        return InstrumentedRun(feeds, feeds, self._observed(feeds, outputs))

    def run_generated(self, inputs: InputOptions) -> InstrumentedRun:
        """Run the model on ``inputs``, with generated arrays for missing ones.

        Raises:
            UsageError: ``inputs`` do not fit the model.
            RuntimeFailure: the model fails on all generated inputs.
        """
        maker = Inputs(self._parts[0].model, inputs)
        trial = run_once.try_with(self._runners[0], maker, optimizations="off", typical=True)
        return InstrumentedRun(trial.feeds, maker.given, self._observed(trial.feeds, trial.outputs))

    @cached_property
    def _runners(self) -> list[Runner]:
        """A runner for each part, created on the first run."""
        return [self._stack.enter_context(run_once.runner(part.model, self._device)) for part in self._parts]

    def _observed(self, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> Observed:
        """The observations of the first part, in ``outputs``, and of the other parts, which run here."""
        values: dict[str, ValueProfile] = {}
        zeros: dict[str, bool] = {}
        for number, part in enumerate(self._parts):
            if number:
                signature = Signature.of(part.model)
                outputs = run_once.named(signature, self._runners[number].run("off", feeds))
            found = part.observed(outputs)
            values |= found.values
            zeros |= found.zeros
        return Observed(values, zeros)
