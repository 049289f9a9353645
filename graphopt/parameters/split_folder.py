"""A split model on disk: a folder with the optimized model, the constants model, and a description."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.errors import InvalidModel, UsageError
from graphopt.parameters.constants_model import SplitConstants
from graphopt.parameters.framework_names import FrameworkName, NameMap

MAIN, CONSTANTS, WEIGHTS, DESCRIPTION = "main.onnx", "constants.onnx", "weights.bin", "split.json"
#: Version of the format of the description.
_FORMAT = "graphopt.constants/1"


def is_split_folder(path: Path) -> bool:
    """Whether ``path`` is a folder that :func:`save` wrote."""
    return (path / DESCRIPTION).is_file()


def description(models: SplitConstants) -> dict[str, Any]:
    """The description of ``models``, for JSON."""
    outputs = [value.name or "" for value in models.constants.graph.outputs]
    return {
        "format": _FORMAT,
        "main": MAIN,
        "constants": CONSTANTS,
        "weights": list(models.weights),
        "computed": {name: i for i, name in enumerate(outputs) if not name.startswith(ir.VALID)},
        "names": {weight: list(name) for weight, name in models.names.names.items()},
    }


def save(models: SplitConstants, folder: Path) -> list[Path]:
    """Write ``models`` to ``folder``; returns the files, the description first.

    The folder is published as a whole: it contains either the old or the new models.

    Raises:
        UsageError: the folder contains other files, or it can't be written.
        ResourceLimit: the disk is full.
    """
    with publish.writing_folder(folder, check_replaceable) as new:
        written = ir.save_together({MAIN: models.main, CONSTANTS: models.constants}, new, WEIGHTS)
        text = json.dumps(description(models), indent=1, ensure_ascii=False) + "\n"
        (new / DESCRIPTION).write_text(text, encoding="utf-8")
    return [folder / DESCRIPTION, *(folder / path.name for path in written)]


def load(folder: Path) -> SplitConstants:
    """The models in ``folder``.

    Raises:
        UsageError: ``folder`` was not written by :func:`save`.
        InvalidModel: a file is missing or damaged.
    """
    if not is_split_folder(folder):
        raise UsageError(
            f"{folder} has no {DESCRIPTION}", hint="graphopt split-constants MODEL -o FOLDER writes one"
        )
    file = folder / DESCRIPTION
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            raise ValueError(f"unknown format {data['format']!r}")
        weights = tuple(map(str, data["weights"]))
        names = {
            str(weight): FrameworkName(str(name), bool(transposed))
            for weight, (name, transposed) in data["names"].items()
        }
    except OSError as error:
        raise UsageError(f"can't read {file}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModel(f"{file} is damaged: {error}") from error
    main, constants = ir.load(folder / MAIN), ir.load(folder / CONSTANTS)
    own = {*main.graph.initializers, *(value.name for value in constants.graph.inputs)}
    computed = {value.name or "" for value in constants.graph.outputs}
    missing = [name for name in weights if name not in own]
    missing += [
        name
        for name in sorted(computed)
        if not name.startswith(ir.VALID) and name not in main.graph.initializers
    ]
    if missing:
        raise InvalidModel(f"{folder} is damaged: {MAIN} has no {missing[0]!r}")
    return SplitConstants(main, constants, weights, NameMap(names))


def check_replaceable(folder: Path) -> None:
    """Check that ``folder`` does not exist, is empty, or was written by :func:`save`.

    Raises:
        UsageError: ``folder`` has other contents.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UsageError(f"can't write {folder}: it is not a folder")
    inside = sorted(os.listdir(folder))
    known = (MAIN, CONSTANTS, WEIGHTS, DESCRIPTION) if is_split_folder(folder) else ()
    other = next((name for name in inside if name not in known), None)
    if other is not None:
        raise UsageError(f"{folder} is not replaced: it contains {other}", hint="name a new folder")
