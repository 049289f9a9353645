"""Values of onnxruntime as guards read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.errors import UsageError
from graphopt.util.element_types import numpy_type

if TYPE_CHECKING:
    from onnxruntime import OrtValue


class BoundValue:
    """The array interface of an ``OrtValue`` for guards; contents are copied from the device on demand."""

    def __init__(self, value: OrtValue) -> None:
        self.value = value
        self.shape = tuple(value.shape())
        self.dtype = numpy_type(value.data_type())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value.numpy(), name)


def bound_values(values: Mapping[str, OrtValue]) -> dict[str, BoundValue]:
    """``values`` for guards; raises UsageError if one is not an OrtValue."""
    for name, value in values.items():
        if not hasattr(value, "data_type"):
            raise UsageError(
                f"{name!r} is a {type(value).__name__}, not an OrtValue", hint="use run for arrays"
            )
    return {name: BoundValue(value) for name, value in values.items()}


def arrays_of(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """``feeds`` with numpy arrays in place of bound values."""
    return {
        name: value.value.numpy() if isinstance(value, BoundValue) else value for name, value in feeds.items()
    }
