"""Record a profile: run an instrumented model, and observe its inputs and intermediate values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.inputs.feeds import InputOptions
from graphopt.ir.signature import Signature
from graphopt.ort.devices import CPU, Device
from graphopt.profile import Profile, observe
from graphopt.specialization.instrumented_runs import InstrumentedRun, InstrumentedRuns
from graphopt.transforms.profile.instrument import Watch


class Recorder:
    """Runs a model (:class:`InstrumentedRuns`), and profiles its inputs and watched intermediate values.

    >>> with Recorder(model) as recorder:                                 # doctest: +SKIP
    ...     recorder.run({"ids": np.zeros((1, 128), np.int64)})
    ...     recorder.profile.values["ids"].shape
    (1, 128)

    Args:
        model: the model, which is not modified.
        device: the device to run it on.
        requires_grad: inputs that require a gradient.
        watch: the values to record.
        limit: record only the first ``limit`` intermediate values.

    Attributes:
        profile: the profile of all runs so far.

    Raises:
        UsageError: ``requires_grad`` contains an unknown input, or the limit is negative.
    """

    def __init__(
        self,
        model: ir.Model,
        device: Device = CPU,
        requires_grad: Iterable[str] = (),
        watch: Watch = Watch.SHAPES,
        limit: int = 1024,
    ) -> None:
        if limit < 0:
            raise UsageError(f"watch_limit must be at least 0, not {limit}")
        self._types = Signature.of(model).input_types
        wanted = dict.fromkeys(requires_grad, True)
        for name in wanted:
            if name not in self._types:
                raise unknown("input", name, self._types)
        self._runs = InstrumentedRuns(model, device, watch, limit)
        self.profile = Profile(
            ir.fingerprint(model, names=True),
            requires_grad=wanted,
            watched=self._runs.watched,
            left_out=self._runs.left_out,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runs.__exit__(kind, error, trace)

    def run(self, feeds: Mapping[str, Any]) -> None:
        """Run the model on ``feeds``, as for :func:`graphopt.run`.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: the model fails on ``feeds``.
        """
        self._record(self._runs.run(feeds))

    def run_generated(self, inputs: InputOptions) -> None:
        """Run the model on ``inputs``, with generated arrays for missing ones.

        Contents of generated inputs are not recorded.

        Raises:
            UsageError: ``inputs`` do not fit the model.
            RuntimeFailure: the model fails on all generated inputs.
        """
        self._record(self._runs.run_generated(inputs))

    def _record(self, run: InstrumentedRun) -> None:
        inputs = observe(self._types, run.feeds, contents=run.given)
        self.profile = self.profile.with_run(inputs, run.observed.values, run.observed.zeros)
