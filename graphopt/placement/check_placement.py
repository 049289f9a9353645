"""Comparison of the predicted placement with that of a session on an available device."""

from __future__ import annotations

import contextlib

from graphopt import ir
from graphopt.ort import session
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.placement.compare_placement import RECORDING, Difference, compare_placement
from graphopt.placement.predict import predict


def check_placement(model: ir.Model, device: Device) -> list[Difference]:
    """The differences between the predicted placement of ``model`` on ``device`` and that of a session.

    Raises:
        RuntimeFailure: the device can't be used, or onnxruntime can't load the model.
    """
    import onnxruntime

    prediction = predict(model, device)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*RECORDING)
    with contextlib.closing(Artifact(model)) as artifact:
        made = session.create(artifact.source, optimizations="off", device=device, options=options)
    return compare_placement(made, prediction)
