"""Models with the kernels of the device, or the reason why it has none."""

from __future__ import annotations

import onnx

from benchmarks.gpu_check.section import Bench, NotApplicable
from benchmarks.native_models import Native, natives
from graphopt import config
from graphopt.fusion.backend import backend_for
from graphopt.ort.devices import Device


def require_backend(device: Device) -> None:
    """Check that kernels for ``device`` can be built.

    Raises:
        NotApplicable: graphopt has no kernels for the device.
        NoCompiler: there is no compiler.
    """
    backend = backend_for(device)
    if backend is None or not device.capabilities.loads_libraries:
        raise NotApplicable(f"graphopt has no kernels for {device}")
    backend.describe_compiler(config.current().compiler)


def kernel_levels(device: Device) -> tuple[int, ...] | None:
    """The CPU levels of kernels: one, to save time; libraries for GPUs contain kernels for CPUs, too."""
    backend = backend_for(device)
    return None if backend is None else backend.levels()[-1:] or None


def native_model(model: onnx.ModelProto, bench: Bench) -> Native:
    """The model after ``fuse-groups``, and a library with its kernels for the device."""
    (found,) = natives([model], "fuse-groups", bench.scratch, bench.device, kernel_levels(bench.device))
    return found
