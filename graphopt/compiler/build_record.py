"""The origin of a result, for the manifests of bundles: the original's file and the device."""

from __future__ import annotations

from pathlib import Path

import onnx

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.model_arguments import ModelLike
from graphopt.specialization.build_record import BuildRecord, OriginalFile
from graphopt.util.disk_store import file_digest


def build_record_of(env: Environment, model: ModelLike, original: ir.Model) -> BuildRecord:
    """The origin of results for ``model``, which ``original`` is loaded from."""
    file = None
    if not isinstance(model, (ir.Model, onnx.ModelProto, bytes)):
        path = Path(model)
        producer = " ".join(filter(None, (original.producer_name, original.producer_version)))
        file = OriginalFile(path.name, file_digest(path), producer)
    return BuildRecord(env.target, file)
