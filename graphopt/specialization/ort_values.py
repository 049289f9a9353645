"""Conversion of arrays to values of onnxruntime, and the interface of these values for guards."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.errors import UsageError
from graphopt.ort.devices import Device
from graphopt.ort.sequence_values import list_of
from graphopt.profile import MOST_INTS
from graphopt.util.ort_array_conversion import LOW_TYPES, from_ort_value, native, numpy_type, to_ort_value

if TYPE_CHECKING:
    from onnxruntime import OrtValue


class BoundValue:
    """The array interface of an ``OrtValue`` for guards; contents are copied from the device on demand.

    Values that are not tensors have no shape and no dtype.
    """

    def __init__(self, value: OrtValue) -> None:
        self.value = value
        is_tensor = value.is_tensor()
        self.shape = tuple(value.shape()) if is_tensor else None
        self.dtype = numpy_type(value.data_type()) if is_tensor else None

    @property
    def is_read(self) -> bool:
        """Whether guards may read its contents."""
        if self.dtype is None or self.shape is None:
            return False
        return self.dtype.kind in "iub" and prod(self.shape) <= MOST_INTS

    def copied(self) -> BoundValue:
        """A copy in the host's memory."""
        import onnxruntime

        return BoundValue(onnxruntime.OrtValue.ortvalue_from_numpy(np.array(self.value.numpy())))

    def __getattr__(self, name: str) -> Any:
        if self.shape is None:
            raise AttributeError(name)
        return getattr(self.value.numpy(), name)


def interfaces(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` for guards: the array interface of values that are not arrays; the same dict if all are."""
    others = {name: BoundValue(value) for name, value in values.items() if type(value) is not np.ndarray}
    return {**values, **others} if others else values


def bound_values(values: Mapping[str, OrtValue]) -> dict[str, BoundValue]:
    """``values`` for guards; raises UsageError if one is not an OrtValue."""
    for name, value in values.items():
        if not hasattr(value, "data_type"):
            raise UsageError(
                f"{name!r} is a {type(value).__name__}, not an OrtValue", hint="use run for arrays"
            )
    return {name: BoundValue(value) for name, value in values.items()}


def type_and_shape(value: OrtValue) -> tuple[str, tuple[int, ...] | None]:
    """The type, such as ``tensor(float)``, and the shape; ``None`` if ``value`` is not a tensor."""
    return value.data_type(), tuple(value.shape()) if value.is_tensor() else None


def ort_value(name: str, value: Any, type_: str, device: Device) -> OrtValue:
    """``value`` as a value of onnxruntime on ``device``; arrays are not copied on the host.

    Args:
        name: the name of the input, for messages.
        value: an array, or a value of onnxruntime, which is returned.
        type_: the type of the input.
        device: the device.

    Raises:
        UsageError: ``value`` is not a tensor.
    """
    import onnxruntime

    if hasattr(value, "data_type"):
        found: OrtValue = value
        return found
    array = native(value, name)
    if type_ in LOW_TYPES:
        return to_ort_value(array, type_)
    whole = np.ascontiguousarray(array).reshape(np.shape(array))
    return onnxruntime.OrtValue.ortvalue_from_numpy(whole, device.kind, device.index)


def empty_like(value: OrtValue, device: Device) -> OrtValue:
    """A tensor on ``device`` with the type and shape of the tensor ``value``, and undefined contents."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(value.shape()), value.element_type(), device.kind, device.index
    )


def copy_on(value: OrtValue, device: Device) -> OrtValue:
    """A copy on ``device`` of the tensor ``value``, which shares no memory with it."""
    copy = empty_like(value, device)
    if prod(value.shape()):
        copy.update_inplace(value)
    return copy


def owning_value(value: Any) -> OrtValue:
    """``value`` as a value of onnxruntime that keeps the memory of an array alive.

    Values of onnxruntime are returned. Booleans, and arrays that are read-only or not contiguous, are copied.

    Raises:
        UsageError: ``value`` is an array of strings.
    """
    import onnxruntime

    if not isinstance(value, np.ndarray):
        found: OrtValue = value
        return found
    if value.dtype.kind in "OUS":
        raise UsageError("onnxruntime creates no values from arrays of strings")
    if value.dtype == bool:  # onnxruntime does not accept the code of booleans that numpy writes to DLPack
        found = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(value.shape), np.bool_)
        if value.size:
            found.update_inplace(np.ascontiguousarray(value).reshape(value.shape))
        return found
    is_shared = value.flags.writeable and value.flags.c_contiguous
    return onnxruntime.OrtValue.from_dlpack(value if is_shared else value.copy())


def kept_contents(feeds: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """``feeds`` with copies of the values among ``names`` whose contents guards may read."""
    return {
        name: value.copied() if name in names and isinstance(value, BoundValue) and value.is_read else value
        for name, value in feeds.items()
    }


def arrays_of(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """``feeds`` with arrays in place of bound values, and lists of arrays in place of sequences.

    Raises:
        RuntimeFailure: a value is neither a tensor nor a sequence of tensors.
    """
    return {
        name: _contents(value.value) if isinstance(value, BoundValue) else value
        for name, value in feeds.items()
    }


def _contents(value: OrtValue) -> Any:
    if not value.is_tensor():
        return list_of(value)
    return from_ort_value(value) if value.data_type() in LOW_TYPES else value.numpy()
