"""Several models beside one file that holds the weights of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphopt.ir.external import Written, changed, write_external_data
from graphopt.ir.io import EXTERNAL_THRESHOLD, to_proto
from graphopt.ir.onnxir import onnx_ir


def save_together(
    models: Mapping[str, onnx_ir.Model], folder: Path, data: str, threshold: int = EXTERNAL_THRESHOLD
) -> list[Path]:
    """Write ``models`` to ``folder``, and their large weights to one file there; returns the files.

    Tensors with the same storage are written once, in whichever models they are. The models are not changed.

    Args:
        models: by the names of their files.
        folder: exists, and has no such files yet.
        data: name of the file of weights; there is none if no weight is large.
        threshold: bytes from which on a weight is large.

    Raises:
        OSError: the files can't be written.
    """
    weights, written = folder / data, Written()
    with open(weights, "xb") as file:
        for name, model in models.items():
            with changed(write_external_data(model, file, threshold, written=written)(data)):
                (folder / name).write_bytes(to_proto(model).SerializeToString())
        is_needed = file.tell() > 0
    if not is_needed:
        weights.unlink()
    return [*(folder / name for name in models), *([weights] if is_needed else [])]
