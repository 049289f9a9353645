"""Record a profile: run a model, and keep of its values what specializing it can rest on."""

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
from graphopt.models import copy
from graphopt.ort.devices import CPU, Device
from graphopt.profile import Profile, observe
from graphopt.specialization.data_dependent import data_dependent_values
from graphopt.util.element_types import native_feeds

if TYPE_CHECKING:
    from graphopt.ort.probe import Runner


class Recorder:
    """Runs a model, and tells what was seen of its inputs and inner values.

    onnxruntime's optimizations are off, so that inner values are there; a model that may kill the process
    runs in a child. Of inner values only those are recorded whose shapes nothing else tells
    (:func:`graphopt.specialization.data_dependent.data_dependent_values`).

    >>> with Recorder(model) as recorder:                                 # doctest: +SKIP
    ...     recorder.run({"ids": np.zeros((1, 128), np.int64)})
    ...     recorder.profile.values["ids"].shape
    (1, 128)

    Args:
        model: it is not changed.
        device: where it runs.
        requires_grad: inputs for which a gradient is wanted.
        most: inner values that are recorded; the first ones, if there are more.

    Attributes:
        profile: what was seen so far.
        left_out: how many inner values are too many to be recorded.

    Raises:
        UsageError: ``requires_grad`` names no input.
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
        self._model = _watched(model, self._inner)
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
            UsageError: an input is missing, or there is none of that name.
            RuntimeFailure: the model does not run on them.
        """
        signature = Signature.of(self._model)
        feeds = native_feeds(feeds)
        run_once.check_feeds(feeds, signature)
        self._saw(feeds, run_once.named(signature, self._runner.run("off", feeds)), feeds)

    def make_up(self, inputs: InputOptions) -> None:
        """Run the model on inputs that are made up as far as ``inputs`` does not give them.

        Contents of inputs that are made up are not recorded.

        Raises:
            UsageError: ``inputs`` does not fit the model.
            RuntimeFailure: the model runs on none that were tried.
        """
        maker = Inputs(self._model, inputs)
        trial = run_once.try_with(self._runner, maker, optimizations="off", typical=True)
        self._saw(trial.feeds, trial.outputs, maker.given)

    @cached_property
    def _runner(self) -> Runner:
        """Starts when there is something to run."""
        return self._stack.enter_context(run_once.runner(self._model, self._device))

    def _saw(self, feeds: Mapping[str, Any], outputs: Mapping[str, Any], given: Collection[str]) -> None:
        inputs = observe(self._types, feeds, contents=given)
        inner = {name: text_of_type(type_) for name, type_ in self._inner.items()}
        self.profile = self.profile.with_run(inputs, observe(inner, outputs, contents=()))


def _watched(model: ir.Model, inner: Mapping[str, ir.TensorType]) -> ir.Model:
    """A copy of ``model`` that also returns the values of these names and types."""
    watched = copy(model)
    edit, given = ir.Editor(watched), set(watched.graph.outputs)
    for node in watched.graph:
        for value in node.outputs:
            type_ = inner.get(value.name or "")
            if type_ is not None and value not in given:
                value.type, value.shape = type_, None  # declared ones may be wrong
                edit.add_output(watched.graph, value)
    return watched
