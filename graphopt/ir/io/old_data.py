"""The data files of a model that is about to be replaced."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.io.external_data import external_protos
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.model_suffixes import suffixes

#: Maximum number of bytes between two tensors for alignment: onnx's IR.md recommends to align large tensors
#: to the allocation granularity of Windows.
_GAP = 1 << 16


@dataclass(frozen=True)
class OldData:
    """The data files of a model.

    Attributes:
        files: all of them, apart from invalid paths.
        whole: the regular files that consist of tensors of the model, in its folder.
    """

    files: Sequence[Path] = ()
    whole: Sequence[Path] = ()

    @classmethod
    def of(cls, proto: onnx.ModelProto, folder: Path) -> OldData:
        """The data files of ``proto``, which was read from ``folder``."""
        spans: dict[Path, list[tuple[int, int]]] = {}
        for tensor in external_protos(proto):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            location = entries.get("location", "")
            if location and "\0" not in location:
                spans.setdefault(folder / location, []).append(_span(tensor, entries))
        whole = [file for file, found in spans.items() if file.parent == folder and _is_whole(file, found)]
        return cls(list(spans), whole)


def _span(tensor: onnx.TensorProto, entries: Mapping[str, str]) -> tuple[int, int]:
    """The first byte of an external tensor, and the one after its last; an empty range if it is unknown."""
    try:
        begin = int(entries.get("offset", 0))
        bits = onnx_ir.DataType(tensor.data_type).bitwidth
        return begin, begin + int(entries.get("length", math.prod(tensor.dims) * bits // 8))
    except (TypeError, ValueError):  # a string tensor, or damaged entries
        return 0, 0


def _is_whole(file: Path, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether ``file`` is a regular file that consists of ``spans``, except for gaps for alignment."""
    if file.is_symlink() or not file.is_file() or file.suffix.lower() in suffixes():
        return False
    covered = 0
    for begin, end in sorted(spans):
        if begin > covered + _GAP:
            return False
        covered = max(covered, end)
    return os.path.getsize(file) <= covered
