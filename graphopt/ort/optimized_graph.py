"""The graph that onnxruntime runs, after its own optimizations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from graphopt import ir, publish
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session import Optimizations, Source
from graphopt.ort.session_options import SessionChoice
from graphopt.ort.utf8_path import utf8_path

#: Minimum size of an external weight, in bytes.
_LEAST = 1024


@contextlib.contextmanager
def optimized_graph(
    model: Source,
    *,
    optimizations: Optimizations = "default",
    device: Device = CPU,
    choice: SessionChoice | None = None,
) -> Iterator[ir.Model]:
    """The model as onnxruntime executes it; its weights are readable within the block.

    Args:
        model, optimizations, device, choice: as for :func:`graphopt.ort.session.create`.

    Raises:
        RuntimeFailure: onnxruntime can't load or write the model.
        InvalidModel: onnxruntime wrote a model that violates the specification.
    """
    import onnxruntime

    with publish.ScratchFolder() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = utf8_path(folder / "model.onnx")
        for key, value in (
            ("session.optimized_model_external_initializers_file_name", "weights.bin"),
            ("session.optimized_model_external_initializers_min_size_in_bytes", str(_LEAST)),
        ):
            options.add_session_config_entry(key, value)
        session.create(
            model, optimizations=optimizations, device=device, threads=1, options=options, choice=choice
        )
        yield ir.load(folder / "model.onnx")
