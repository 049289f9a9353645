"""Record a profile: run an instrumented model, and observe its inputs and intermediate values."""

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
from graphopt.ir.signature import Signature
from graphopt.model_arguments import copy
from graphopt.ort.devices import CPU, Device
from graphopt.partitioning.outlining import FUNCTIONS_SINCE
from graphopt.profile import Profile, ValueProfile, observe
from graphopt.specialization.instrumented_model import InstrumentedModel, lower_profiling_nodes
from graphopt.transforms.autodiff.profile_autograd_zero import ProfileAutogradZero
from graphopt.transforms.profile.instrument import Instrument, Watch
from graphopt.transforms.profile.remove_profile_nodes import RemoveProfileNodes
from graphopt.util.element_types import native_feeds

if TYPE_CHECKING:
    from graphopt.ort.model_runs import Runner


class Recorder:
    """Runs a model, and profiles its inputs and the intermediate values that ``instrument`` watches.

    onnxruntime's optimizations are off, so that intermediate values exist; a model that may crash the process
    runs in a child.

    >>> with Recorder(model) as recorder:                                 # doctest: +SKIP
    ...     recorder.run({"ids": np.zeros((1, 128), np.int64)})
    ...     recorder.profile.values["ids"].shape
    (1, 128)

    Args:
        model: the model, which is not modified.
        device: the device to run it on.
        requires_grad: inputs for which a gradient is wanted.
        watch: the values to record.
        limit: the maximum number of intermediate values to record, the first ones.

    Attributes:
        profile: the profile of all runs so far.

    Raises:
        UsageError: ``requires_grad`` contains an unknown input.
    """

    def __init__(
        self,
        model: ir.Model,
        device: Device = CPU,
        requires_grad: Iterable[str] = (),
        watch: Watch = Watch.SHAPES,
        limit: int = 1024,
    ) -> None:
        inputs = Signature.of(model).inputs
        self._types = {port.name: port.type for port in inputs if port.role != "constant"}
        wanted = dict.fromkeys(requires_grad, True)
        for name in wanted:
            if name not in self._types:
                raise unknown("input", name, self._types)
        self._models, watched, left_out = instrumented(model, watch, limit)
        self.profile = Profile(
            ir.fingerprint(model, names=True), requires_grad=wanted, watched=watched, left_out=left_out
        )
        self._outputs = [port.name for port in Signature.of(model).outputs]
        self._device = device
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model on ``feeds``, as for :func:`graphopt.run`; returns its outputs by name.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: the model fails on them.
        """
        signature = Signature.of(self._models[0].model)
        feeds = native_feeds(feeds)
        run_once.check_feeds(feeds, signature)
        outputs = run_once.named(signature, self._runners[0].run("off", feeds))
        self._record(feeds, outputs, feeds)
        return {name: outputs[name] for name in self._outputs}

    def make_up(self, inputs: InputOptions) -> None:
        """Run the model on ``inputs``, with generated arrays for missing ones.

        Contents of generated inputs are not recorded.

        Raises:
            UsageError: ``inputs`` do not fit the model.
            RuntimeFailure: the model fails on all generated inputs.
        """
        maker = Inputs(self._models[0].model, inputs)
        trial = run_once.try_with(self._runners[0], maker, optimizations="off", typical=True)
        self._record(trial.feeds, trial.outputs, maker.given)

    @cached_property
    def _runners(self) -> list[Runner]:
        """One for each model, created on the first run."""
        return [self._stack.enter_context(run_once.runner(part.model, self._device)) for part in self._models]

    def _record(self, feeds: Mapping[str, Any], outputs: Mapping[str, Any], given: Collection[str]) -> None:
        """Add a run to the profile: the first model's, with these ``outputs``; the other models run here."""
        values: dict[str, ValueProfile] = {}
        zeros: dict[str, bool] = {}
        for number, part in enumerate(self._models):
            if number:
                signature = Signature.of(part.model)
                outputs = run_once.named(signature, self._runners[number].run("off", feeds))
            found = part.observed(outputs)
            values |= found.values
            zeros |= found.zeros
        inputs = observe(self._types, feeds, contents=given)
        self.profile = self.profile.with_run(inputs, values, zeros)


def instrumented(model: ir.Model, watch: Watch, limit: int) -> tuple[list[InstrumentedModel], int, int]:
    """The models that observe values of ``model``, and the numbers of watched and of other values."""
    extended = copy(model)
    if extended.ir_version < FUNCTIONS_SINCE:  # profiling nodes are calls of functions
        ir.Editor(extended).raise_ir_version(FUNCTIONS_SINCE)
    pass_ = Instrument(watch, limit)
    with context_for(extended) as cx:
        RemoveProfileNodes().run(extended, cx)  # the file may be an instrumented model
        found = pass_.select(extended, cx)
        pass_.run(extended, cx)
        ProfileAutogradZero().run(extended, cx)
    return lower_profiling_nodes(extended), len(found.inner), len(found.left_out)
