"""Variants of a model on a device: errors relative to the CPU, and alternate timing with bound values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.timed_turns import time_turns, timer
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session_options import SessionChoice
from graphopt.timing import ratios
from graphopt.timing.alternating_runs import Setup

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Feeds = Mapping[str, np.ndarray]
#: Tolerance of errors in float32, and in float16.
TOLERANCE, HALF_TOLERANCE = 1e-3, 2e-2
#: Seconds of a turn.
_TURN = 0.01


@dataclass(frozen=True)
class Variant:
    """A form of a model.

    Attributes:
        model: the serialized model.
        choice: its session options.
        provider_options: options of the CUDA provider; TF32 is on, as by default, unless they turn it off.
    """

    model: session.Source
    choice: SessionChoice | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of a model in a file."""
        assert isinstance(self.model, Path), "the model is in memory"
        return self.model

    def session(self, device: Device, *, tf32: bool = True, profile: str | None = None) -> InferenceSession:
        """A session as users create it; on CUDA without TF32 if it is off."""
        options = {} if device == CPU else {"use_tf32": str(int(tf32)), **self.provider_options}
        choices = {} if self.choice is None else {"": self.choice}
        setup = Setup({}, device=device, provider_options=options, choices=choices)
        return setup.session(self.model, profile=profile)


class BoundSession:
    """A session whose inputs and outputs are bound to values on the device.

    Args:
        variant: the model.
        feeds: its inputs; those that the variant lacks are ignored.
        outputs: arrays with the shapes and types of its outputs.
        tf32: whether the provider may round factors to TF32.
    """

    def __init__(
        self, variant: Variant, feeds: Feeds, outputs: Sequence[Any], device: Device, *, tf32: bool = True
    ) -> None:
        import onnxruntime

        make = onnxruntime.OrtValue
        self._session = variant.session(device, tf32=tf32)
        self._binding = self._session.io_binding()
        self._values = []
        for argument in self._session.get_inputs():
            array = np.ascontiguousarray(feeds[argument.name])
            self._values.append(make.ortvalue_from_numpy(array, device.kind, device.index))
            self._binding.bind_ortvalue_input(argument.name, self._values[-1])
        for argument, array in zip(self._session.get_outputs(), outputs, strict=True):
            shape = list(np.shape(array))
            value = make.ortvalue_from_shape_and_type(shape, array.dtype, device.kind, device.index)
            self._values.append(value)
            self._binding.bind_ortvalue_output(argument.name, value)
        self._binding.synchronize_inputs()
        self._queued = onnxruntime.RunOptions()
        self._queued.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def __call__(self) -> None:
        """Run once, and wait for the device."""
        self._session.run_with_iobinding(self._binding)

    def run_queued(self, times: int) -> None:
        """Run several times, and wait for the device only at the end."""
        for _ in range(times - 1):
            self._session.run_with_iobinding(self._binding, self._queued)
        self()

    def outputs(self) -> list[np.ndarray]:
        """Copies of the outputs of the last run."""
        return [value.numpy() for value in self._binding.get_outputs()]


def on_cpu(model: session.Source, feeds: Feeds) -> list[Any]:
    """The outputs of a model on the CPU."""
    return session.run(session.create(model), dict(feeds))


def on_device(variant: Variant, feeds: Feeds, expected: Sequence[Any], device: Device) -> list[np.ndarray]:
    """The outputs of a variant on ``device``, with TF32 off: of the third run, which replays a CUDA graph."""
    bound = BoundSession(variant, feeds, expected, device, tf32=False)
    for _ in range(3):
        bound()
    return bound.outputs()


def error(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """The largest difference, each output relative to its largest value; infinite if shapes differ."""
    worst = 0.0
    for one, two in zip(expected, found, strict=True):
        a, b = np.asarray(one), np.asarray(two)
        if a.shape != b.shape:
            return math.inf
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
            return math.inf
        a, b = a[finite], b[finite]
        scale = max(float(np.abs(a).max(initial=0.0)), 1e-6)
        worst = max(worst, float(np.abs(a - b).max(initial=0.0)) / scale)
    return worst


def complaint(found: float, tolerance: float = TOLERANCE) -> str:
    """The reason why an error is too large; empty if it is not."""
    return "" if found <= tolerance else f"error {found:.0e}, more than {tolerance:.0e}"


def alternate(runs: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """The seconds of each of ``runs`` by round, the fastest of a turn; runs take turns in a different order.

    Args:
        seconds: time for all rounds; there are at least five.
    """
    return time_turns({name: timer(run) for name, run in runs.items()}, seconds, turn=_TURN)


def speedup(times: Mapping[str, Sequence[float]], name: str, original: str) -> float:
    """How many times as fast as ``original`` a run is: the median over rounds."""
    return ratios.median([a / b for a, b in zip(times[original], times[name], strict=True)])


def milliseconds(times: Sequence[float]) -> float:
    """The median in milliseconds."""
    return ratios.median(list(times)) * 1e3
