"""Checkpoints: the carried tensors of training in a .safetensors file, with the number of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import UsageError
from graphopt.parameters import parameter_files
from graphopt.parameters.lifting import as_parameters
from graphopt.training.step_plan import Plan
from graphopt.util.lazy_dataclass import dataclass

_KEY = "graphopt.training"


@dataclass(frozen=True)
class Checkpoint:
    """The state of training after some steps.

    Attributes:
        tensors: the carried tensors by name.
        steps: the number of steps done.
        plan: the result of :meth:`Plan.to_dict`; ``None`` for a file with tensors only.
    """

    tensors: dict[str, np.ndarray]
    steps: int = 0
    plan: dict[str, Any] | None = None


def write(path: Path, tensors: Mapping[str, np.ndarray], steps: int, plan: Plan) -> None:
    """Write a checkpoint; the file is replaced atomically.

    Raises:
        UsageError: the file can't be written, a tensor's name is reserved in the format, or the file name
            does not end in ``.safetensors``.
    """
    if path.suffix.lower() != ".safetensors":
        raise UsageError(f"{path} is not a file name for a checkpoint", hint="name it *.safetensors")
    parameters = as_parameters(tensors)
    parameters.metadata[_KEY] = json.dumps({"steps": steps, "plan": plan.to_dict()})
    parameter_files.write(path, parameters)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or a file with tensors only.

    Raises:
        UsageError: the file does not exist, or is damaged.
    """
    found = parameter_files.read(path)
    tensors = {name: tensor.numpy() for name, tensor in found.tensors.items()}
    text = found.metadata.get(_KEY)
    if text is None:
        return Checkpoint(tensors)
    try:
        data = json.loads(text)
        return Checkpoint(tensors, int(data["steps"]), dict(data["plan"]))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} has training metadata of an unsupported format") from error
