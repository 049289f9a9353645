"""The layout of inputs in memory: alignment on the device, and repeated elements.

onnxruntime reads dense tensors. Kernels on a GPU load 16 bytes at a time, so that inputs at other addresses
are copied first; this concerns inputs in GPU memory only (``ALIGNMENT`` of PyTorch's ``compile_fx``). An
input with an axis of stride 0 repeats elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.diagnostics.hint import Hint
from graphopt.diagnostics.record import Record
from graphopt.ort.devices import Device
from graphopt.specialization.ort_values import copy_on

if TYPE_CHECKING:
    from onnxruntime import OrtValue

#: Bytes; addresses of inputs in GPU memory are multiples of it.
ALIGNMENT = 16


def is_aligned(value: OrtValue) -> bool:
    """Whether the address of a tensor is a multiple of :data:`ALIGNMENT`."""
    return value.data_ptr() % ALIGNMENT == 0


def aligned(values: Mapping[str, Any], device: Device, record: Record) -> Mapping[str, Any]:
    """``values`` with aligned copies of the tensors in GPU memory that are not aligned.

    Args:
        values: values of onnxruntime; the same object is returned if none is copied.
        device: the device of the session, for copies.
        record: counts copies, and receives a hint.
    """
    copied = {
        name: copy_on(value, device)
        for name, value in values.items()
        if _is_on_gpu(value) and not is_aligned(value)
    }
    if not copied:
        return values
    record.count("copies of misaligned inputs", len(copied))
    for name in copied:
        record.hint(
            Hint(
                "inputs-misaligned",
                f"input {name!r} is in GPU memory at an address that is no multiple of {ALIGNMENT} bytes, and"
                " each run copies it",
                "allocate it on its own instead of passing a part of a larger buffer",
            )
        )
    return {**values, **copied}


def _is_on_gpu(value: Any) -> bool:
    return bool(value.is_tensor()) and str(value.device_name()).lower() == "cuda"


def distinct_elements(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The elements of ``array`` without repetition along axes of stride 0; ``None`` without such an axis."""
    if 0 not in array.strides:
        return None
    repeats = [stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)]
    if not any(repeats) or not array.size:
        return None
    return array[tuple(slice(0, 1) if one else slice(None) for one in repeats)]


def note_repeated(arrays: Iterable[tuple[str, Any]], record: Record) -> None:
    """Record the inputs that repeat elements."""
    for name, array in arrays:
        distinct = distinct_elements(array) if isinstance(array, np.ndarray) else None
        if distinct is None:
            continue
        record.count("inputs with repeated elements")
        record.hint(
            Hint(
                "inputs-broadcast",
                f"input {name!r} of shape {list(array.shape)} repeats {list(distinct.shape)}, and each run"
                " expands it in memory",
                "feed the smaller array, and let the model broadcast it or expand it by Expand",
            )
        )
