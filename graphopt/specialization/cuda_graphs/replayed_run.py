"""One replayed run of a model, for ``graphopt run --cuda-graph``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from graphopt import ir
from graphopt.inputs.run_once import TimedRun, named
from graphopt.ir.signature import Signature
from graphopt.ort import session
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice
from graphopt.specialization.cuda_graphs.graph_switch import GraphSwitch


def replayed_run(
    model: ir.Model,
    feeds: Mapping[str, Any],
    switch: GraphSwitch,
    *,
    device: Device,
    optimizations: Optimizations = "default",
    choice: SessionChoice | None = None,
) -> TimedRun | None:
    """A run that captures, and the timed replay; ``None`` if the model can't be captured.

    Args:
        model: the model.
        feeds: its inputs.
        switch: the options of CUDA graphs; it receives the reason if they are off.
        device, optimizations, choice: as for :func:`graphopt.ort.session.create`.

    Raises:
        RuntimeFailure: onnxruntime can't load or run the model.
    """
    artifact = Artifact(model)
    try:
        create = partial(_create, artifact.source, optimizations, device, choice)
        _, graphs = switch.session(create, lambda: model, device)
        if graphs is None:
            return None
        graphs.arrays(feeds)
        begin = time.perf_counter()
        outputs = graphs.arrays(feeds)
        seconds = time.perf_counter() - begin
    finally:
        artifact.close()
    return TimedRun(dict(feeds), named(Signature.of(model), outputs), seconds)


def _create(
    source: session.Source,
    optimizations: Optimizations,
    device: Device,
    choice: SessionChoice | None,
    options: Mapping[str, str],
) -> Any:
    return session.create(
        source, optimizations=optimizations, device=device, choice=choice, provider_options=options
    )
