"""Checkpoints: what training carries, in a .safetensors file, with how far it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import UsageError
from graphopt.parameters import files
from graphopt.parameters.lifting import as_parameters
from graphopt.training.plan import Plan

_KEY = "graphopt.training"


@dataclass(frozen=True)
class Checkpoint:
    """A point in training.

    Attributes:
        tensors: what is carried, by name.
        steps: how many steps were done.
        plan: what was trained by, as :meth:`Plan.to_dict` tells it; ``None`` for a file of tensors alone.
    """

    tensors: dict[str, np.ndarray]
    steps: int = 0
    plan: dict[str, Any] | None = None


def write(path: Path, tensors: Mapping[str, np.ndarray], steps: int, plan: Plan) -> None:
    """Write a checkpoint; whoever looks sees the old file or the new, never a part of one.

    Raises:
        UsageError: it can't be written, a tensor's name means something else there, or the file is called
            otherwise than ``*.safetensors``.
    """
    if path.suffix.lower() != ".safetensors":
        raise UsageError(f"{path} is no name for a checkpoint", hint="call it *.safetensors")
    held = as_parameters(tensors)
    held.metadata[_KEY] = json.dumps({"steps": steps, "plan": plan.to_dict()})
    files.write(path, held)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or a file of tensors alone.

    Raises:
        UsageError: there is no such file, or it is damaged.
    """
    found = files.read(path)
    tensors = {name: tensor.numpy() for name, tensor in found.tensors.items()}
    text = found.metadata.get(_KEY)
    if text is None:
        return Checkpoint(tensors)
    try:
        told = json.loads(text)
        return Checkpoint(tensors, int(told["steps"]), dict(told["plan"]))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} tells of training in a way that is not understood") from error
