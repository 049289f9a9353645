"""A split on disk: a folder with both models, a file with their weights, and a plan in JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.autodiff.split_joint import Split
from graphopt.errors import UsageError, unwritable

FORWARD, BACKWARD, WEIGHTS, PLAN = "forward.onnx", "backward.onnx", "weights.bin", "plan.json"
#: Version of the format of the plan.
FORMAT = "graphopt.split/1"


def plan_of(found: Split) -> dict[str, Any]:
    """The plan of a training loop, for JSON: names and order of inputs and outputs, and sizes in bytes."""
    joint, report = found.joint, found.report

    def part(file: str, model: ir.Model) -> dict[str, Any]:
        return {
            "file": file,
            "inputs": [value.name or "" for value in model.graph.inputs],
            "outputs": [value.name or "" for value in model.graph.outputs],
        }

    return {
        "format": FORMAT,
        "forward": part(FORWARD, found.forward),
        "backward": part(BACKWARD, found.backward),
        "loss": joint.loss,
        "handed": found.handed,
        "static": found.static,
        "saved": [asdict(item) for item in found.saved],
        "cotangents": joint.cotangents,
        "gradients": joint.gradients,
        "state": joint.state,
        "report": asdict(report),
    }


def save_split(found: Split, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``found`` to a new or empty ``folder``; returns the files, the plan first.

    Large weights of both models are written once. The folder is published as a whole, so a failure leaves no
    files.

    Raises:
        UsageError: the folder is not empty, or it can't be written.
        ResourceLimit: the disk is full.
    """
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    with publish.writing_folder(folder, _check_empty) as new:
        written = ir.save_together({FORWARD: found.forward, BACKWARD: found.backward}, new, WEIGHTS)
        text = json.dumps(plan_of(found), indent=1, ensure_ascii=False) + "\n"
        (new / PLAN).write_text(text, encoding="utf-8")
    return [folder / PLAN, *(folder / path.name for path in written)]


def _check_empty(folder: Path) -> None:
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        why = "it is not empty" if folder.is_dir() else "it is not a folder"
        raise UsageError(f"can't write {folder}: {why}", hint="name a new or an empty folder")
