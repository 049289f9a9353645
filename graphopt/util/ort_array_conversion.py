"""Conversion between numpy and onnxruntime for the element types that numpy lacks.

Arrays of ``ml_dtypes`` represent bfloat16, the 8-bit floats and the sub-byte integers, with one or two bytes
per element. onnxruntime expects their bits, with sub-byte elements packed, the first in the low bits
(ONNX IR, "Serializing Tensor Data").
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphopt.errors import RuntimeFailure, UsageError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue


class LowType(NamedTuple):
    """An element type that onnxruntime's numpy interface does not support."""

    code: int  # onnx.TensorProto.DataType
    name: str  # in ml_dtypes
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.name))


#: By onnxruntime's name of the tensor type.
LOW_TYPES = {
    "tensor(bfloat16)": LowType(16, "bfloat16", 16),
    "tensor(float8e4m3fn)": LowType(17, "float8_e4m3fn", 8),
    "tensor(float8e4m3fnuz)": LowType(18, "float8_e4m3fnuz", 8),
    "tensor(float8e5m2)": LowType(19, "float8_e5m2", 8),
    "tensor(float8e5m2fnuz)": LowType(20, "float8_e5m2fnuz", 8),
    "tensor(uint4)": LowType(21, "uint4", 4),
    "tensor(int4)": LowType(22, "int4", 4),
    "tensor(float4e2m1)": LowType(23, "float4_e2m1fn", 4),
    "tensor(float8e8m0)": LowType(24, "float8_e8m0fnu", 8),
    "tensor(uint2)": LowType(25, "uint2", 2),
    "tensor(int2)": LowType(26, "int2", 2),
}
_NUMPY_NAMES = {"float": "float32", "double": "float64", "string": "object"}


@functools.cache
def numpy_type(text: str) -> np.dtype[Any] | None:
    """The element type of arrays of type ``text``, such as ``tensor(float)``; ``None`` if not a tensor.

    Strings have the element type object, although arrays of strings of a fixed length are also accepted.
    """
    if not text.startswith("tensor("):
        return None
    if text in LOW_TYPES:
        return LOW_TYPES[text].dtype
    try:
        return np.dtype(_NUMPY_NAMES.get(text[7:-1], text[7:-1]))
    except TypeError:  # a type of a later version
        return None


def native_feeds(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """``feeds`` with each value converted by :func:`native`; the same object if nothing changes.

    Raises:
        UsageError: a value is not a tensor.
    """
    changed = {}
    for name in feeds:
        value = feeds[name]
        if type(value) is np.ndarray and value.dtype.isnative and value.dtype.kind != "O":
            continue
        made = native(value, name)
        if made is not value:
            changed[name] = made
    return {**feeds, **changed} if changed else feeds


def native(value: Any, name: str) -> Any:
    """``value`` as onnxruntime reads arrays, which it assumes to be in the byte order of the machine.

    Arrays of another byte order are copied, numpy's scalars become arrays of rank 0, and the elements of a
    list are converted one by one.

    Raises:
        UsageError: an array is masked, or contains Python objects other than strings.
    """
    if isinstance(value, list) and any(isinstance(part, np.ndarray | np.generic) for part in value):
        parts = [native(part, name) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):  # numpy.ma is slow to import
        raise UsageError(f"input {name!r} is a masked array", hint="array.filled(0) has no mask")
    if value.dtype.kind == "O" and not all(isinstance(item, str | bytes) for item in value.flat):
        raise UsageError(f"input {name!r} is an array of Python objects", hint="give numbers a dtype")
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def to_ort_value(array: Any, onnx_type: str) -> OrtValue:
    """Put ``array`` into an OrtValue of ``onnx_type``, such as ``tensor(bfloat16)``.

    The memory is shared if elements have whole bytes.

    Raises:
        RuntimeFailure: ``onnx_type`` is not a tensor type, or is that of strings, which onnxruntime
            accepts only directly.
    """
    import onnxruntime

    low = LOW_TYPES.get(onnx_type)
    if low is None:
        if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "fiubc":
            raise RuntimeFailure(f"onnxruntime can't take a {onnx_type} beside types that numpy lacks")
        array = np.asarray(array)
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    array = np.asarray(array)
    if array.dtype != low.dtype:
        # numpy's own files store such elements as bits
        same_bits = array.dtype.kind in "Vu" and array.dtype.itemsize == low.dtype.itemsize
        array = array.view(low.dtype) if same_bits else array.astype(low.dtype)
    if low.bits >= 8:
        array = np.ascontiguousarray(array).reshape(array.shape)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, low.code)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), low.code)
    data = pack(array, low.bits)
    if data:
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def from_ort_value(value: OrtValue) -> Any:
    """The contents of a tensor, on the CPU or a GPU, as a numpy array that owns its memory.

    Raises:
        RuntimeFailure: the value is a sequence or a map, or its device can't be read.
    """
    low = LOW_TYPES.get(value.data_type())
    if low is None:
        if not value.is_tensor():
            raise RuntimeFailure(
                f"onnxruntime can't give a {value.data_type()} beside types that numpy lacks"
            )
        return np.array(value.numpy())  # a view, perhaps of the memory of another array
    size, device = value.tensor_size_in_bytes(), value.device_name().lower()
    if not size:
        data = b""
    elif device == "cpu":
        data = ctypes.string_at(value.data_ptr(), size)
    else:  # the CPU can't read the address, and OrtValue.numpy lacks the element type
        data = bytes_on_device(device, value.data_ptr(), size)
    return unpack(data, low, tuple(value.shape()))


def bytes_on_device(device: str, address: int, size: int) -> bytes:
    """A copy of ``size`` bytes at ``address`` in the memory of ``device``, such as ``cuda``.

    A session for the device reads the bytes as numbers of 8 bits, a type that all devices support. Addresses
    of CUDA are unique among the GPUs of a process, so that the index of the GPU does not matter.

    Raises:
        RuntimeFailure: onnxruntime has no provider for the device.
    """
    session = _copying_session(device)
    binding = session.io_binding()
    binding.bind_input("x", device, 0, np.uint8, [size], address)
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    found: bytes = binding.copy_outputs_to_cpu()[0].tobytes()
    return found


@functools.cache
def _copying_session(device: str) -> InferenceSession:
    """A session on ``device`` that copies numbers of 8 bits."""
    import onnxruntime
    from onnx import TensorProto, helper

    provider = f"{device.upper()}ExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeFailure(f"values in the memory of the device {device!r} can't be read")
    x, y = (helper.make_tensor_value_info(name, TensorProto.UINT8, ["N"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "copy", [x], [y])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])


def pack(array: np.ndarray[Any, Any], bits: int) -> bytes:
    """The bits of ``array``, with elements of fewer than 8 bits packed."""
    if bits >= 8:
        return np.ascontiguousarray(array).tobytes()
    per_byte = 8 // bits
    elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-elements.size // per_byte) * per_byte, np.uint8)
    padded[: elements.size] = elements
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8).tobytes()


def unpack(data: bytes, low: LowType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Undo :func:`pack`."""
    if low.bits >= 8:
        return np.frombuffer(data, low.dtype).reshape(shape).copy()
    per_byte = 8 // low.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * low.bits
    elements = (np.frombuffer(data, np.uint8)[:, None] >> shifts) & ((1 << low.bits) - 1)
    size = int(np.prod(shape, dtype=np.int64))
    flat = elements.reshape(-1)[:size].astype(np.uint8)
    return flat.view(low.dtype).reshape(shape)
