"""A split on disk: a folder of both models, one file of their weights, and a plan that tells what to feed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.autodiff.split import Split
from graphopt.errors import UsageError, unwritable

FORWARD, BACKWARD, WEIGHTS, PLAN = "forward.onnx", "backward.onnx", "weights.bin", "plan.json"
#: Of the plan: who reads it checks this.
FORMAT = "graphopt.split/1"


def plan_of(found: Split) -> dict[str, Any]:
    """What a training loop has to know, for JSON: names, their order, and sizes in bytes."""
    joint, report = found.joint, found.report

    def names(values: Any) -> list[str]:
        return [value.name or "" for value in values]

    return {
        "format": FORMAT,
        "forward": {
            "file": FORWARD,
            "inputs": names(found.forward.graph.inputs),
            "outputs": names(found.forward.graph.outputs),
        },
        "backward": {
            "file": BACKWARD,
            "inputs": names(found.backward.graph.inputs),
            "outputs": names(found.backward.graph.outputs),
        },
        "loss": joint.loss,
        "handed": found.handed,
        "saved": [asdict(item) for item in found.saved],
        "cotangents": joint.cotangents,
        "gradients": joint.gradients,
        "state": joint.state,
        "report": asdict(report),
    }


def save_split(found: Split, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``found`` to ``folder``, a new or empty one; returns the files, the plan first.

    Large weights that both models have are written once. All is written beside and then moved, so that a
    failure leaves nothing behind.

    Raises:
        UsageError: there is something in the folder, or it can't be written.
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
        why = "it is not empty" if folder.is_dir() else "it is no folder"
        raise UsageError(f"can't write {folder}: {why}", hint="a split takes a new folder, or an empty one")
