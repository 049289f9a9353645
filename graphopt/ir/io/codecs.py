"""File formats of models, selected by suffix.

A format is a :class:`Codec`. To add one, call :func:`register`: loading, saving, the command line and the
artifacts for onnxruntime then support its suffixes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx

from graphopt.errors import InvalidModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.io.external_data import changed
from graphopt.ir.io.proto_conversion import decode, root_cause, to_proto
from graphopt.ir.io.streaming_serialization import chunks, detach_weights
from graphopt.util import model_suffixes
from graphopt.util.lazy_dataclass import dataclass

Chunks = Iterable[bytes | memoryview]


@dataclass(frozen=True)
class ExternalData:
    """The second file of a format, for large tensors.

    Attributes:
        suffix: the suffix of the data file, appended to the file name of the model.
        by_default: whether models have a data file unless the caller refuses one. Otherwise, models have a
            data file if they were loaded with external data, or exceed 2 GB.
        attributes: whether the data file also contains tensors of attributes.
    """

    suffix: str
    by_default: bool = False
    attributes: bool = False


@dataclass(frozen=True)
class Codec:
    """A file format of models.

    Attributes:
        name: the format's name in messages.
        suffixes: the suffixes of its files, with their dots.
        load: parses the contents of a file; the second argument is its name in messages. External tensors
            remain external. Raises InvalidModel.
        save: serializes a model; the second argument is the size in bytes from which tensors may use a
            compact notation. External tensors stay external. The function must not read the model after it
            returned. UnsupportedModel is raised if the format can't represent the model.
        external_data: ``None`` if files of this format contain all tensors.
        ort_reads: whether onnxruntime loads files of this format.
    """

    name: str
    suffixes: tuple[str, ...]
    load: Callable[[bytes, str], onnx.ModelProto]
    save: Callable[[onnx_ir.Model, int], Chunks]
    external_data: ExternalData | None = None
    ort_reads: bool = False

    def writes_data_by_default(self, location: str) -> bool:
        """Whether ``location`` is the name of a data file that this format writes by default."""
        data = self.external_data
        if data is None or not data.by_default:
            return False
        suffixes = "|".join(map(re.escape, self.suffixes))
        return re.search(rf"({suffixes})(\.[0-9a-f]+)?{re.escape(data.suffix)}$", location) is not None


def _save_onnx(model: onnx_ir.Model, inline_limit: int) -> Chunks:
    changes, weights = detach_weights(model)
    with changed(changes):
        data = to_proto(model).SerializeToString()
    return chunks(data, weights) if weights else [data]


def _load_json_ir(data: bytes, where: str) -> onnx.ModelProto:
    from graphopt.ir.json import from_json

    text = _text(data, where)
    try:
        return from_json(text)
    except InvalidModel as error:
        raise InvalidModel(
            f"{where}: {error.message}", hint="docs/json-ir.md describes the format"
        ) from error


def _save_json_ir(model: onnx_ir.Model, inline_limit: int) -> Chunks:
    from graphopt.ir.json import to_json

    return [to_json(to_proto(model), max(inline_limit, 1)).encode()]


def _load_onnx_json(data: bytes, where: str) -> onnx.ModelProto:
    from graphopt.ir.io.onnx_json import from_onnx_json

    text = _text(data, where)
    try:
        return from_onnx_json(text)
    except InvalidModel as error:
        raise InvalidModel(f"{where}: {error.message}") from error


def _save_onnx_json(model: onnx_ir.Model, inline_limit: int) -> Chunks:
    from graphopt.ir.io.onnx_json import to_onnx_json

    return [to_onnx_json(to_proto(model)).encode()]


def _load_text(data: bytes, where: str) -> onnx.ModelProto:
    import onnx.parser

    try:
        return onnx.parser.parse_model(data.decode())
    except Exception as error:  # onnx's parser raises C++ exceptions, mostly for numbers
        raise InvalidModel(f"{where} is not ONNX text: {root_cause(error)}") from error


def _save_text(model: onnx_ir.Model, inline_limit: int) -> Chunks:
    from graphopt.ir.io.write_onnx_text import to_text

    return [to_text(to_proto(model)).encode()]


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{where} is not UTF-8: {error.reason} at byte {error.start}") from None


ONNX = Codec("ONNX", model_suffixes.ONNX, decode, _save_onnx, ExternalData(".data"), ort_reads=True)
JSON_IR = Codec(
    "JSON IR",
    model_suffixes.JSON_IR,
    _load_json_ir,
    _save_json_ir,
    ExternalData(".bin", by_default=True, attributes=True),
)
ONNX_JSON = Codec(
    "onnx's own JSON",
    model_suffixes.ONNX_JSON,
    _load_onnx_json,
    _save_onnx_json,
)
TEXT = Codec(
    "ONNX text",
    model_suffixes.TEXT,
    _load_text,
    _save_text,
)

_BY_SUFFIX: dict[str, Codec] = {}


def register(codec: Codec) -> None:
    """Add a file format.

    Raises:
        ValueError: a suffix of the format is taken.
    """
    for suffix in codec.suffixes:
        if suffix in _BY_SUFFIX:
            raise ValueError(f"suffix {suffix} belongs to {_BY_SUFFIX[suffix].name}")
    _BY_SUFFIX.update(dict.fromkeys(codec.suffixes, codec))
    model_suffixes.add_suffixes(codec.suffixes)


for _codec in (ONNX, JSON_IR, ONNX_JSON, TEXT):
    register(_codec)


def codecs() -> tuple[Codec, ...]:
    """All registered formats."""
    return tuple(dict.fromkeys(_BY_SUFFIX.values()))


def codec_of(path: str | os.PathLike[str]) -> Codec:
    """The format of the file ``path``; ONNX for an unknown suffix."""
    return _BY_SUFFIX.get(Path(path).suffix, ONNX)
