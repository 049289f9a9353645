"""The contents of tensors, without loss: small tensors as numbers, others as bytes.

A float has the fewest digits that distinguish it from its neighbours. NaNs and infinities are the strings
``nan``, ``inf`` and ``-inf``; a NaN with bits other than the default ones includes these bits:
``nan:0xffc00000``.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from graphopt.errors import InvalidModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.json.errors import Fault, expect, expect_int, shown
from graphopt.ir.json.type_text import ELEMENTS, element_name
from graphopt.util.text_tables import counted

_STRING = onnx.TensorProto.STRING
_NAN_BITS = re.compile(r"nan:0x([0-9a-f]{1,16})")
#: Fields whose packed bytes in the wire format equal the contents in ``raw_data``.
_PACKED: dict[int, tuple[str, int]] = {
    onnx.TensorProto.FLOAT: ("float_data", 4),
    onnx.TensorProto.COMPLEX64: ("float_data", 4),
    onnx.TensorProto.DOUBLE: ("double_data", 8),
    onnx.TensorProto.COMPLEX128: ("double_data", 8),
}


def bytes_of(tensor: onnx.TensorProto) -> bytes:
    """The contents of ``tensor`` in the format of ``raw_data``; strings are not supported.

    Raises:
        InvalidModel: the size of the contents does not match type and dims.
    """
    data = tensor.raw_data
    if not data and not tensor.HasField("raw_data"):
        if tensor.data_type in _PACKED:
            field, size = _PACKED[tensor.data_type]
            only = onnx.TensorProto()
            getattr(only, field).MergeFrom(getattr(tensor, field))
            wire = only.SerializeToString()
            data = wire[len(wire) - size * len(getattr(tensor, field)) :]
        else:
            try:
                data = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidModel(f"the contents of {tensor.name!r} can't be read: {error}") from error
    if tensor.data_type in ELEMENTS and len(data) != nbytes(tensor.data_type, tensor.dims):
        raise InvalidModel(f"the contents of {tensor.name!r} do not fit its type")
    return data


def nbytes(data_type: int, dims: Sequence[int]) -> int:
    """The size of the contents of a tensor, in bytes."""
    return -(-prod(dims) * onnx_ir.DataType(data_type).bitwidth // 8)


def write_contents(tensor: onnx.TensorProto, limit: int) -> dict[str, Any]:
    """The keys for the contents of ``tensor``: numbers if the contents are smaller than ``limit`` bytes.

    Raises:
        InvalidModel: the size of the contents does not match type and dims.
    """
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        places = {entry.key: entry.value for entry in tensor.external_data}
        offsets = {key: int(places[key]) for key in ("offset", "length") if key in places}
        return {"file": places.get("location", ""), **offsets}
    if tensor.data_type == _STRING:
        if len(tensor.string_data) != prod(tensor.dims):
            raise InvalidModel(f"the contents of {tensor.name!r} do not fit its type")
        return {"data": _nested([write_bytes(text) for text in tensor.string_data], tensor.dims)}
    data = bytes_of(tensor)
    if tensor.data_type not in ELEMENTS or len(data) >= limit:
        return {"base64": base64.b64encode(data).decode()}
    if not data:
        return {"data": []}
    raw = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data)
    return {"data": _nested(_write_array(numpy_helper.to_array(raw)), tensor.dims)}


def _write_array(array: np.ndarray) -> list[Any]:
    """The elements in order; a complex element is a pair."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        parts = _write_array(flat.view(np.dtype(f"f{flat.dtype.itemsize // 2}")))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if not _is_float(flat.dtype):
        return (flat if flat.dtype.kind in "iub" else flat.astype(np.int64)).tolist()
    wide = _wide(flat)
    numbers: list[Any] = wide.tolist()
    if flat.dtype in (np.float32, np.float16):
        numbers = [short(number, flat.dtype.type) for number in numbers]
    for index in np.flatnonzero(~np.isfinite(wide)).tolist():
        numbers[index] = _write_special(flat[index : index + 1])
    return numbers


def _is_float(dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        return True
    return dtype.name.startswith(("bfloat", "float"))  # types of ml_dtypes


def short(number: float, type_: type[np.floating[Any]] = np.float32) -> float:
    """The number with the fewest digits that rounds to ``number``, a number of ``type_``."""
    text = float(str(type_(number)))
    return text if type_(text) == number else number


def _wide(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return array.astype(np.float64)


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _write_special(element: np.ndarray) -> str:
    if np.isinf(_wide(element))[0]:
        return "inf" if _wide(element)[0] > 0 else "-inf"
    bits = int(_bits(element)[0])
    plain = int(_bits(np.array([np.nan], element.dtype))[0])
    return "nan" if bits == plain else f"nan:{bits:#0{2 + 2 * element.dtype.itemsize}x}"


def _nested(items: list[Any], dims: Sequence[int]) -> Any:
    """``items`` in nested lists, one level per dim; without items a single empty list."""
    if not items:
        return []
    for dim in reversed(dims[1:]):
        items = [items[start : start + dim] for start in range(0, len(items), dim)]
    return items if len(dims) else items[0]


def read_contents(tensor: onnx.TensorProto, document: dict[str, Any]) -> None:
    """Set the contents of ``tensor``, whose type is known, from an object.

    Raises:
        Fault: the contents do not fit the type.
    """
    forms = [key for key in ("data", "base64", "file") if key in document]
    if len(forms) != 1:
        raise Fault('expects one of "data", "base64" and "file"')
    form = forms[0]
    if form != "file":
        for key in ("offset", "length"):
            if key in document:
                raise Fault('goes with "file" only').under(key)
    try:
        if form == "file":
            _read_place(tensor, document)
        elif form == "base64":
            _read_base64(tensor, expect(document[form], str, "a string"))
        elif tensor.data_type == _STRING:
            tensor.string_data.extend(_read_texts(_flatten(document[form], tensor.dims)))
        else:
            array = _read_array(_flatten(document[form], tensor.dims), tensor.data_type)
            tensor.raw_data = numpy_helper.from_array(array).raw_data
    except Fault as fault:
        raise fault if form == "file" else fault.under(form) from None


def _read_place(tensor: onnx.TensorProto, document: dict[str, Any]) -> None:
    places = {"location": expect(document["file"], str, "a string")}
    for key in ("offset", "length"):
        if key in document:
            try:
                places[key] = str(expect_int(document[key]))
            except Fault as fault:
                raise fault.under(key) from None
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in places.items():
        tensor.external_data.add(key=key, value=value)


def _read_base64(tensor: onnx.TensorProto, text: str) -> None:
    data = decode_base64(text)
    if tensor.data_type == _STRING:
        raise Fault('strings belong in "data"')
    if tensor.data_type in ELEMENTS:
        wanted = nbytes(tensor.data_type, tensor.dims)
        if len(data) != wanted:
            raise Fault(f"has {counted(len(data), 'byte')}; the type requires {wanted}")
    tensor.raw_data = data


def _flatten(data: Any, dims: Sequence[int]) -> list[Any]:
    """The elements of nested lists, whose lengths must equal ``dims``."""
    if 0 in dims:
        if data != []:
            raise Fault("a tensor without elements has []")
        return []
    items = [data]
    for depth, dim in enumerate(dims):
        for index, item in enumerate(items):
            if type(item) is not list or len(item) != dim:
                found = counted(len(item), "entry", "entries") if type(item) is list else shown(item)
                raise Fault(f"expects a list of {dim}, found {found}").under(*_place(index, dims[:depth]))
        items = [element for item in items for element in item]
    return items


def _place(index: int, dims: Sequence[int]) -> list[int]:
    place: list[int] = []
    for dim in reversed(dims):
        index, last = divmod(index, dim)
        place.insert(0, last)
    return place


def _read_array(items: list[Any], data_type: int) -> np.ndarray:
    name = element_name(data_type)
    if data_type not in ELEMENTS or data_type == onnx.TensorProto.UNDEFINED:
        raise Fault(f"contents of type {name} can't be written as numbers")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        for item in items:
            if type(item) is not list or len(item) != 2:
                raise Fault(f"expects pairs of numbers, found {shown(item)}")
        return _read_floats([part for pair in items for part in pair], part, name).view(dtype)
    if dtype == np.bool_:
        return np.array([expect(item, bool, "true or false") for item in items], dtype)
    if _is_float(dtype):
        return _read_floats(items, dtype, name)
    limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    for item in items:
        if not limits.min <= expect(item, int, "integers") <= limits.max:
            raise Fault(f"{shown(item)} does not fit into {name}")
    wide = np.uint64 if dtype == np.uint64 else np.int64
    return np.array(items, wide).astype(dtype)


def _read_floats(items: list[Any], dtype: np.dtype[Any], name: str) -> np.ndarray:
    specials = [index for index, item in enumerate(items) if type(item) is str]
    numbers = list(items)
    for index in specials:
        numbers[index] = 1.0  # every type has a denotation
    for number in numbers:
        if type(number) not in (float, int):
            raise Fault(f"expects numbers, found {shown(number)}")
    try:
        wide = np.array(numbers, np.float64)
        with np.errstate(over="ignore"):
            array = wide.astype(dtype)
    except OverflowError:
        raise Fault(f"a number does not fit into {name}") from None
    lost = np.flatnonzero(~np.isfinite(_wide(array)))
    if lost.size:
        raise Fault(f"{shown(numbers[int(lost[0])])} does not fit into {name}")
    for index in specials:
        _read_special(items[index], array, index, name)
    return array


def _read_special(text: str, array: np.ndarray, index: int, name: str) -> None:
    bits = _NAN_BITS.fullmatch(text)
    if bits:
        number = int(bits[1], 16)
        if number.bit_length() <= 8 * array.dtype.itemsize:
            _bits(array)[index] = number
        if not np.isnan(_wide(array[index : index + 1]))[0]:
            raise Fault(f"{shown(text)} is no NaN of {name}")
        return
    if text not in {"nan", "inf", "-inf"}:
        raise Fault(f"expects a number, nan, inf or -inf, found {shown(text)}")
    array[index] = float(text)
    if text != "nan" and not np.isinf(_wide(array[index : index + 1]))[0]:
        raise Fault(f"{name} has no {text}")


def write_float(number: float) -> float | str:
    """A number of 32 bits."""
    if number - number == 0:
        return short(number)
    return _write_special(np.frombuffer(struct.pack("<f", number), "<f4"))


def read_float(item: Any) -> float:
    """A number of 32 bits, as a Python float."""
    return float(_read_floats([item], np.dtype(np.float32), "f32")[0])


def write_bytes(data: bytes) -> str | dict[str, str]:
    """A string, or base64 if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def read_bytes(item: Any) -> bytes:
    """The bytes of a string, or of ``{"base64": …}``."""
    if type(item) is dict and list(item) == ["base64"]:
        return decode_base64(expect(item["base64"], str, "a string"))
    text: str = expect(item, str, 'a string or {"base64": …}')
    return text.encode()


def _read_texts(items: list[Any]) -> list[bytes]:
    return [read_bytes(item) for item in items]


def decode_base64(text: str) -> bytes:
    """The bytes that ``text`` encodes."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Fault("is not base64") from None
