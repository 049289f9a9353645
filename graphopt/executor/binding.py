"""Tensors that stay on the device: onnxruntime's own values, bound to inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.errors import RuntimeFailure
from graphopt.ort.devices import Device
from graphopt.ort.session import explain
from graphopt.util.element_types import numpy_type

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue


class Bound:
    """What guards ask of an ``OrtValue``; contents leave the device only if they ask for those."""

    def __init__(self, value: OrtValue) -> None:
        self.value = value
        self.shape = tuple(value.shape())
        self.dtype = numpy_type(value.data_type())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value.numpy(), name)


def run_bound(
    made: InferenceSession, values: Mapping[str, OrtValue], names: list[str], device: Device
) -> list[OrtValue]:
    """The outputs of a session as values on ``device``.

    Raises:
        RuntimeFailure: onnxruntime can't run it, or takes no such values.
    """
    try:
        binding = made.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, device.kind, device.index)
        made.run_with_iobinding(binding)
        return list(binding.get_outputs())
    except Exception as error:  # onnxruntime's errors have no common base
        raise RuntimeFailure(f"onnxruntime failed: {explain(error)}") from error
