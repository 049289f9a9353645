"""A test in another process whether onnxruntime creates a session with CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir
from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.ort import session
from graphopt.ort.devices import Device
from graphopt.ort.session import Source
from graphopt.ort.session_options import SessionChoice
from graphopt.process.child import Child
from graphopt.specialization.cuda_graphs.graph_switch import GRAPHS_ON, refusal

#: Timeout of one session, in seconds.
_PATIENCE = 600.0


def trial_refusal(
    source: Source, model: ir.Model | None, device: Device, choice: SessionChoice | None = None
) -> str | None:
    """The reason why ``source`` has no session with CUDA graphs, although it has one without them.

    ``None`` if a session with CUDA graphs can be created, or no session at all.

    Args:
        source, device, choice: as for :func:`graphopt.ort.session.create`.
        model: the model, to explain the reason; ``None`` if only onnxruntime can read it.
    """
    try:
        _load_in_child(source, device, choice, GRAPHS_ON)
    except (RuntimeFailure, ResourceLimit) as failure:
        try:
            _load_in_child(source, device, choice, {})
        except (RuntimeFailure, ResourceLimit):  # a run of the model reports it
            return None
        return refusal(failure, model, device)
    return None


def _load_in_child(
    source: Source, device: Device, choice: SessionChoice | None, provider_options: Mapping[str, str]
) -> None:
    preload = ("graphopt.specialization.cuda_graphs.graph_trial",)
    with Child(preload=preload, fresh=not device.capabilities.forkable) as child:
        child.call(load, source, device, choice, dict(provider_options), timeout=_PATIENCE)


def load(
    source: Source, device: Device, choice: SessionChoice | None, provider_options: Mapping[str, str]
) -> None:
    """Create a session, in the child."""
    session.create(source, device=device, choice=choice, provider_options=provider_options)
