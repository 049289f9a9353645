"""The training loop; carried tensors remain on the device."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt import config, ir
from graphopt.errors import RuntimeFailure, UsageError, unknown
from graphopt.fusion.kernel_library import libraries_for
from graphopt.model_arguments import ModelLike, PathLike, copy, in_ort_readable_form, loaded
from graphopt.ort import preflight
from graphopt.ort.devices import Device, choose_device
from graphopt.ort.error_text import as_failure
from graphopt.ort.loadable_model import Artifact
from graphopt.parameters.lifting import as_parameters, unlift
from graphopt.training import checkpoint
from graphopt.training.step_plan import KEY, RATE, Plan
from graphopt.training.training_step import TrainingStep, state_file
from graphopt.util.ort_array_conversion import (
    LOW_TYPES,
    from_ort_value,
    native_feeds,
    numpy_type,
    to_ort_value,
)

if TYPE_CHECKING:
    from onnxruntime import IOBinding, OrtValue

#: Called after each step with the number of steps done, and the loss.
StepCallback = Callable[[int, float], None]


class Trainer:
    """Trains a model, step by step.

    >>> trainer = graphopt.Trainer(graphopt.train_step("model.onnx", "mse:y,target"))   # doctest: +SKIP
    >>> trainer.step({"x": x, "target": target})                                        # doctest: +SKIP
    0.25

    Parameters and state are in two sets of buffers that onnxruntime reads and writes alternately. Steps
    therefore allocate no buffers, and copy or move no parameters. Not thread-safe.

    Args:
        step: the result of :func:`graphopt.train_step`, or its model in any form.
        state: the path of initial values or of a checkpoint; by default the initial values of ``step``, or
            the ``.safetensors`` file beside the model.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: threads inside one operator; by default one per core.

    Attributes:
        plan: the roles of the model's inputs and outputs.
        steps: the number of steps done.
        learning_rate: the default learning rate of :meth:`step`; may be changed.

    Raises:
        UsageError: the model is not a training step, the state does not fit it, or ``state`` is missing for a
            model in memory.
        RuntimeFailure: onnxruntime can't load the model, or the device can't be used.
    """

    def __init__(
        self,
        step: TrainingStep | ModelLike,
        state: PathLike | None = None,
        *,
        device: str | Device | None = None,
        threads: int | None = None,
    ) -> None:
        path = Path(state) if state is not None else None
        if path is None and not isinstance(step, TrainingStep):
            path = _default_state(step)
        self._device = choose_device(device)[0]
        self._source: ir.Model | None = None
        initial: dict[str, np.ndarray] = {}
        if isinstance(step, TrainingStep):
            self.plan, self._source, initial = step.plan, step.source, step.initial
            self._artifact = Artifact(step.model)
            model = step.model
        else:
            model = loaded(step)
            self.plan = Plan.parse(model.metadata_props.get(KEY))
            self._artifact = Artifact(in_ort_readable_form(step))
        libraries = libraries_for(model, config.current(), self._device)
        self._session = preflight.create(
            self._artifact.source, device=self._device, threads=threads, choice=libraries.choice
        )
        self._types = {item.name: item.type for item in self._session.get_inputs()}
        self._defaults = [item.name for item in self._session.get_overridable_initializers()]
        self._check_plan()
        self._fed = [*self.plan.inputs, *self._defaults]
        self.learning_rate = self.plan.learning_rate
        found = checkpoint.Checkpoint(initial) if path is None else self._read(path)
        loss = next(item for item in self._session.get_outputs() if item.name == self.plan.loss)
        self._loss = to_ort_value(np.zeros([1] * len(loss.shape), numpy_type(loss.type)), loss.type)
        self._buffers = self._allocated(found.tensors)
        self._bindings = self._bind()
        self.steps = found.steps
        self._now = 0
        self._last: IOBinding | None = None

    # Steps ---------------------------------------------------------------------------------

    def step(self, feeds: Mapping[str, Any], learning_rate: float | None = None) -> float:
        """Perform a step; returns the loss before the update.

        Args:
            feeds: a numpy array for each of ``plan.inputs``.
            learning_rate: the learning rate of this step.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: onnxruntime can't run the step. Parameters and state are unchanged.
            SystemExhausted: the memory of the GPU does not suffice. Parameters and state are unchanged.
        """
        if isinstance(feeds, Mapping):
            feeds = native_feeds(feeds)
        self._check_feeds(feeds)
        rate = self.learning_rate if learning_rate is None else learning_rate
        if not isinstance(rate, (int, float, np.number)) or not 0 <= rate < math.inf:
            raise UsageError(f"the learning rate must be a nonnegative number, not {rate!r}")
        if self._defaults:  # values fed instead of defaults must not remain bound
            self._bindings = self._bind()
        binding = self._bindings[self._now]
        try:
            # keeps the arrays alive, because onnxruntime reads them in place
            values = {name: self._value(name, data) for name, data in feeds.items()}
            values[RATE] = self._value(RATE, np.array(rate, np.float32))
            for name, value in values.items():
                binding.bind_ortvalue_input(name, value)
            for name in self.plan.outputs:  # the run must not overwrite the values of the previous run
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            loss = from_ort_value(self._loss)
        except RuntimeFailure:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base class
            on_gpu = not self._device.capabilities.is_host
            raise as_failure(error, "onnxruntime failed", on_gpu=on_gpu) from error
        self._last = binding
        self._now = 1 - self._now
        self.steps += 1
        return float(np.asarray(loss).reshape(()))

    def fit(
        self,
        batches: Iterable[Mapping[str, Any]],
        learning_rate: float | Callable[[int], float] | None = None,
        watch: StepCallback | None = None,
    ) -> list[float]:
        """Perform a step for each of ``batches``; returns the losses.

        Args:
            learning_rate: a number, or a function of the number of steps done.
            watch: called after each step, such as a :class:`graphopt.ProgressBar`.
        """
        losses = []
        for feeds in batches:
            rate = learning_rate(self.steps) if callable(learning_rate) else learning_rate
            losses.append(self.step(feeds, rate))
            if watch is not None:
                watch(self.steps, losses[-1])
        return losses

    def outputs(self) -> dict[str, np.ndarray]:
        """The further outputs of the last step by name, for a step with ``outputs="all"``."""
        if self._last is None:
            return {}
        found = dict(
            zip((item.name for item in self._session.get_outputs()), self._last.get_outputs(), strict=True)
        )
        return {name: _copied(found[name]) for name in self.plan.outputs}

    # Results -------------------------------------------------------------------------------

    def carried(self) -> dict[str, np.ndarray]:
        """Copies of the carried tensors by name: parameters, running statistics and state."""
        return {name: _copied(value) for name, value in self._buffers[self._now].items()}

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and running statistics by name."""
        buffers = self._buffers[self._now]
        names = [*self.plan.parameters, *self.plan.statistics]
        return {name: _copied(buffers[name]) for name in names}

    def export(self, model: ModelLike | None = None) -> ir.Model:
        """A copy of the model with the current parameters.

        Args:
            model: the model that receives the parameters, such as the same network exported for inference; by
                default the trained model.

        Raises:
            UsageError: the training step was loaded from a file and ``model`` is omitted, or the parameters
                don't fit the model.
        """
        if model is None:
            model = self._source
        if model is None:
            raise UsageError(
                "a training step from a file has no source model",
                hint="give the model: trainer.export('model.onnx')",
            )
        found = copy(loaded(model))
        unlift(found, as_parameters(self.parameters()))
        return found

    def save(self, path: PathLike) -> None:
        """Write a checkpoint, ``*.safetensors``, which is replaced atomically.

        Raises:
            UsageError: the file can't be written.
        """
        checkpoint.write(Path(path), self.carried(), self.steps, self.plan)

    def load(self, path: PathLike) -> None:
        """Resume from a checkpoint; the following steps are bit-identical to uninterrupted training.

        This restores ``steps``; the caller chooses batches and learning rates.

        Raises:
            UsageError: the checkpoint can't be read, or has other settings.
        """
        found = self._read(Path(path))
        self._buffers = self._allocated(found.tensors)
        self._bindings = self._bind()
        self._last, self._now, self.steps = None, 0, found.steps

    def _read(self, path: Path) -> checkpoint.Checkpoint:
        """A checkpoint, or a file of initial values, that fits the plan."""
        found = checkpoint.read(path)
        if found.plan is not None:
            _check_same(path, found.plan, self.plan.to_dict())
        return found

    # Buffers -------------------------------------------------------------------------------

    def _allocated(
        self, tensors: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, OrtValue], dict[str, OrtValue]]:
        """Two sets of buffers for the carried tensors, the first with the contents ``tensors``."""
        self._check_fits(tensors)
        first = {name: self._value(name, tensors[name].copy()) for name in self.plan.carried}
        second = {name: self._value(name, np.zeros_like(tensors[name])) for name in self.plan.carried}
        return first, second

    def _bind(self) -> tuple[IOBinding, IOBinding]:
        """Two bindings: each reads the buffers that the other one writes."""
        first, second = self._buffers
        return self._bound(first, second), self._bound(second, first)

    def _bound(self, read: Mapping[str, OrtValue], written: Mapping[str, OrtValue]) -> IOBinding:
        binding = self._session.io_binding()
        for name, value in read.items():
            binding.bind_ortvalue_input(name, value)
        carried = {output: written[name] for name, output in self.plan.new.items()}
        for item in self._session.get_outputs():
            if item.name in carried:
                binding.bind_ortvalue_output(item.name, carried[item.name])
            elif item.name == self.plan.loss:
                binding.bind_ortvalue_output(item.name, self._loss)
            else:
                binding.bind_output(item.name)
        return binding

    def _value(self, name: str | None, data: Any) -> OrtValue:
        """``data`` as onnxruntime's own value, on the device."""
        import onnxruntime

        array = np.asarray(data)
        kind = self._types.get(name or "", "")
        # onnxruntime creates values of these types on the CPU only
        if self._device.capabilities.is_host or kind in LOW_TYPES:
            return to_ort_value(array, kind)
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self._device.kind, self._device.index)

    # Checks --------------------------------------------------------------------------------

    def _check_plan(self) -> None:
        plan, outputs = self.plan, {item.name for item in self._session.get_outputs()}
        inputs = {*self._types, *self._defaults}
        missing = [name for name in (*plan.inputs, *plan.carried, RATE) if name not in inputs]
        missing += [name for name in (plan.loss, *plan.outputs, *plan.new.values()) if name not in outputs]
        if missing:
            raise UsageError(f"the model's metadata {KEY!r} names {missing[0]!r}, which the model lacks")

    def _check_feeds(self, feeds: Mapping[str, Any]) -> None:
        if not isinstance(feeds, Mapping):
            raise UsageError(f"inputs are a dict of arrays by name, not {type(feeds).__name__}")
        for name, data in feeds.items():
            if name not in self._fed:
                raise unknown("input", name, self._fed)
            wanted = numpy_type(self._types.get(name, ""))
            given = data.dtype if isinstance(data, np.ndarray) and data.dtype.kind in "fiub" else wanted
            if wanted is not None and given != wanted:
                raise UsageError(f"input {name!r} expects {wanted}, the array contains {given}")
        for name in self.plan.inputs:
            if name not in feeds:
                raise UsageError(f"the training step needs a value for input {name!r}")

    def _check_fits(self, tensors: Mapping[str, np.ndarray]) -> None:
        inputs = {item.name: item for item in self._session.get_inputs()}
        for name in self.plan.carried:
            if name not in tensors:
                raise UsageError(f"the carried tensor {name!r} is missing")
            item, data = inputs[name], tensors[name]
            dtype, shape = numpy_type(item.type), tuple(item.shape)
            if data.dtype != dtype or data.shape != shape:
                raise UsageError(
                    f"{name!r} is {dtype} {list(shape)}, and was saved as {data.dtype} {list(data.shape)}"
                )


def _default_state(step: ModelLike) -> Path:
    """The file of initial values beside the model.

    Raises:
        UsageError: the model was not passed as a path.
    """
    if not isinstance(step, (str, os.PathLike)):
        raise UsageError(
            "a training step in memory needs a file with its state",
            hint="give the state: Trainer(step, 'step.safetensors')",
        )
    return state_file(Path(step))


def _copied(value: OrtValue) -> np.ndarray:
    """A copy of the contents of ``value``, which onnxruntime will overwrite."""
    return from_ort_value(value)


def _check_same(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Check that a checkpoint has the same settings, except for the learning rate."""
    for key in ("parameters", "statistics", "state", "optimizer", "clip_norm", "accumulate", "no_decay"):
        if saved.get(key) != json.loads(json.dumps(own[key])):
            raise UsageError(
                f"{path} has other settings: {key.replace('_', ' ')} differ",
                hint="graphopt unlift-parameters inserts its parameters into the model, for a new start",
            )
