"""The graph that onnxruntime's optimizer creates from a model of a bundle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from graphopt import ir
from graphopt.ort.devices import Device
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice
from graphopt.specialization.bundle.file_snapshot import BundleFiles


@contextlib.contextmanager
def optimized_file(
    files: BundleFiles, name: str, level: Optimizations, device: Device, choice: SessionChoice
) -> Iterator[ir.Model]:
    """The graph that onnxruntime runs for a file of a bundle."""
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> ir.Model:
            graph = optimized_graph(path, optimizations=level, device=device, choice=choice)
            return stack.enter_context(graph)

        yield files.use(name, opened)
