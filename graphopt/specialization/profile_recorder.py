"""Record a profile: run a model, and observe its inputs and data-dependent intermediate values."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import unknown
from graphopt.inputs import run_once
from graphopt.inputs.feeds import InputOptions, Inputs
from graphopt.ir.signature import Signature, text_of_type
from graphopt.model_arguments import copy
from graphopt.ort.devices import CPU, Device
from graphopt.profile import Profile, observe
from graphopt.specialization.data_dependent_values import data_dependent_values
from graphopt.util.element_types import native_feeds

if TYPE_CHECKING:
    from graphopt.ort.model_runs import Runner


class Recorder:
    """Runs a model, and profiles its inputs and intermediate values.

    onnxruntime's optimizations are off, so that intermediate values exist; a model that may crash the process
    runs in a child. Only intermediate values with data-dependent shapes are recorded
    (:func:`graphopt.specialization.data_dependent_values.data_dependent_values`).

    >>> with Recorder(model) as recorder:                                 # doctest: +SKIP
    ...     recorder.run({"ids": np.zeros((1, 128), np.int64)})
    ...     recorder.profile.values["ids"].shape
    (1, 128)

    Args:
        model: the model, which is not modified.
        device: the device to run it on.
        requires_grad: inputs for which a gradient is wanted.
        most: the maximum number of intermediate values to record, the first ones.

    Attributes:
        profile: the profile of all runs so far.
        left_out: the number of intermediate values beyond ``most``.

    Raises:
        UsageError: ``requires_grad`` contains an unknown input.
    """

    def __init__(
        self, model: ir.Model, *, device: Device = CPU, requires_grad: Iterable[str] = (), most: int = 256
    ) -> None:
        inputs = Signature.of(model).inputs
        self._types = {port.name: port.type for port in inputs if port.role != "constant"}
        wanted = dict.fromkeys(requires_grad, True)
        for name in wanted:
            if name not in self._types:
                raise unknown("input", name, self._types)
        self.profile = Profile(ir.fingerprint(model, names=True), requires_grad=wanted)
        with context_for(model) as cx:
            inner = {value.name or "": type_ for value, type_ in data_dependent_values(model, cx.facts)}
        self.left_out = max(0, len(inner) - most)
        self._inner = dict(list(inner.items())[:most])
        self._model = _with_outputs(model, self._inner)
        self._device = device
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, feeds: Mapping[str, Any]) -> None:
        """Run the model on ``feeds``, as for :func:`graphopt.run`.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: the model fails on them.
        """
        signature = Signature.of(self._model)
        feeds = native_feeds(feeds)
        run_once.check_feeds(feeds, signature)
        self._record(feeds, run_once.named(signature, self._runner.run("off", feeds)), feeds)

    def make_up(self, inputs: InputOptions) -> None:
        """Run the model on ``inputs``, with generated arrays for missing ones.

        Contents of generated inputs are not recorded.

        Raises:
            UsageError: ``inputs`` do not fit the model.
            RuntimeFailure: the model fails on all generated inputs.
        """
        maker = Inputs(self._model, inputs)
        trial = run_once.try_with(self._runner, maker, optimizations="off", typical=True)
        self._record(trial.feeds, trial.outputs, maker.given)

    @cached_property
    def _runner(self) -> Runner:
        """Created on the first run."""
        return self._stack.enter_context(run_once.runner(self._model, self._device))

    def _record(self, feeds: Mapping[str, Any], outputs: Mapping[str, Any], given: Collection[str]) -> None:
        inputs = observe(self._types, feeds, contents=given)
        inner = {name: text_of_type(type_) for name, type_ in self._inner.items()}
        self.profile = self.profile.with_run(inputs, observe(inner, outputs, contents=()))


def _with_outputs(model: ir.Model, inner: Mapping[str, ir.TensorType]) -> ir.Model:
    """A copy of ``model`` with further outputs: the values with these names and types."""
    extended = copy(model)
    edit, given = ir.Editor(extended), set(extended.graph.outputs)
    for node in extended.graph:
        for value in node.outputs:
            type_ = inner.get(value.name or "")
            if type_ is not None and value not in given:
                value.type, value.shape = type_, None  # a declared shape may be wrong
                edit.add_output(extended.graph, value)
    return extended
