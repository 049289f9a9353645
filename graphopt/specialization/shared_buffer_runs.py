"""Run a model once with outputs written over inputs, in a child process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.inputs.run_once import TimedRun
from graphopt.ir.signature import Signature
from graphopt.ort import session
from graphopt.ort.crash_risks import crash_risk
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.ort.session import Optimizations, Source
from graphopt.ort.session_options import SessionChoice
from graphopt.process.child import Child
from graphopt.specialization.ort_values import ort_value
from graphopt.specialization.shared_buffer_checks import BufferChecks
from graphopt.specialization.variant_session import VariantSession
from graphopt.util.ort_array_conversion import from_ort_value


def run_shared(
    model: ir.Model,
    feeds: Mapping[str, Any],
    share: Mapping[str, str],
    *,
    device: Device,
    optimizations: Optimizations = "default",
    choice: SessionChoice | None = None,
) -> TimedRun:
    """Run ``model`` once in a child; on other devices than the CPU only if it may crash.

    Args:
        model: the model.
        feeds: the inputs, which are copied.
        share: by name of an output, the input that the output overwrites. device, optimizations,
        choice: as for :func:`graphopt.ort.session.create`.

    Raises:
        UsageError, VerificationFailed, RuntimeFailure: as for :meth:`graphopt.Executor.run_bound`.
    """
    artifact = Artifact(model)
    try:
        arguments = artifact.source, dict(feeds), dict(share), device, optimizations, choice
        if not device.capabilities.forkable and crash_risk(model) is None:
            return _run(*arguments)
        with Child(
            preload=("graphopt.specialization.shared_buffer_runs",), fresh=not device.capabilities.forkable
        ) as child:
            return child.call(_run, *arguments, doing="running the model with shared buffers")
    finally:
        artifact.close()


def copies(feeds: Mapping[str, Any], signature: Signature, device: Device) -> dict[str, Any]:
    """Copies of ``feeds`` as values of onnxruntime on ``device``."""
    types = signature.input_types
    return {
        name: ort_value(name, np.array(value), types.get(name, ""), device) for name, value in feeds.items()
    }


def _run(
    source: Source,
    feeds: dict[str, Any],
    share: dict[str, str],
    device: Device,
    optimizations: Optimizations,
    choice: SessionChoice | None,
) -> TimedRun:
    model = Artifact(source).model()
    signature = Signature.of(model)
    made = session.create(source, optimizations=optimizations, device=device, choice=choice)
    graph = partial(optimized_graph, source, optimizations=optimizations, device=device, choice=choice)
    ready = VariantSession(made, signature, BufferChecks(lambda: model, graph, made))
    values = copies(feeds, signature, device)
    buffers = ready.buffers.for_run(share, values)
    begin = time.perf_counter()
    found = ready.run_bound(values, device, buffers)
    seconds = time.perf_counter() - begin
    return TimedRun(feeds, {name: from_ort_value(value) for name, value in found.items()}, seconds)
