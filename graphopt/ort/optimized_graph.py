"""The graph that onnxruntime runs, after its own optimizations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from graphopt import ir, publish
from graphopt.ort import preflight, session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.session import Optimizations, Source
from graphopt.ort.session_options import SessionChoice
from graphopt.ort.utf8_path import utf8_path

#: Minimum size of an external weight, in bytes.
_LEAST = 1024


@contextlib.contextmanager
def optimized_graph(
    model: ir.Model | Source,
    *,
    optimizations: Optimizations = "default",
    device: Device = CPU,
    choice: SessionChoice | None = None,
) -> Iterator[ir.Model]:
    """The graph that onnxruntime runs for a model; its weights are readable within the ``with`` block.

    A child writes it if possible, so that this process survives a crash and needs no second session.

    Args:
        model: the model.
        optimizations, device, choice: as for :func:`graphopt.ort.session.create`.

    Raises:
        ProcessCrashed: the child died.
        RuntimeFailure: onnxruntime can't load or write the model.
        InvalidModel: onnxruntime wrote a model that violates the specification.
    """
    with contextlib.ExitStack() as stack:
        source = model
        if isinstance(source, ir.Model):
            source = stack.enter_context(contextlib.closing(Artifact(source))).source
        path = stack.enter_context(publish.ScratchFolder()) / "model.onnx"
        arguments = source, path, optimizations, device, choice
        if not preflight.in_child(write, *arguments, device=device, doing="optimizing the model"):
            write(*arguments)
        yield ir.load(path)


def write(
    model: Source, path: Path, optimizations: Optimizations, device: Device, choice: SessionChoice | None
) -> None:
    """Write the model as onnxruntime executes it; arguments as for :func:`optimized_graph`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = utf8_path(path)
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", "weights.bin"),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(_LEAST)),
    ):
        options.add_session_config_entry(key, value)
    session.create(
        model, optimizations=optimizations, device=device, threads=1, options=options, choice=choice
    )
