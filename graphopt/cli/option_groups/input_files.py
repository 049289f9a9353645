"""Inputs of several runs, read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphopt.cli.invocation import Run
from graphopt.cli.options import option_relations
from graphopt.cli.options.parameter_types import reads_data
from graphopt.errors import UsageError
from graphopt.util.missing_files import no_such_file
from graphopt.util.text_tables import shortened


def recorded_option(**relation: Any) -> Any:
    """``--inputs``, with its ``relation`` (:class:`graphopt.cli.options.option_relations.Option`)."""
    return option_relations.option(
        "--inputs",
        "recorded",
        type=reads_data,
        multiple=True,
        metavar="FILE.npz|FOLDER",
        help="Run on each .npz file: arrays with the names of the inputs.",
        **relation,
    )


def arrays_in(run: Run, path: Path) -> list[Path]:
    """``path``, or the files of arrays in the folder ``path``."""
    hint = "numpy.savez(FILE.npz, **inputs) keeps the inputs of a run"
    if not path.exists():
        raise no_such_file(path, "file or folder")
    if not path.is_dir():
        if path.suffix != ".npz":
            raise UsageError(f"--inputs {path} is no .npz file", hint=hint)
        return [path]
    inside = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    found = [file for file in inside if file.suffix == ".npz" and file.is_file()]
    others = [file.name for file in inside if file not in found]
    if not found:
        raise UsageError(f"there is no .npz file in {path}", hint=hint)
    if others:
        run.console.note(f"  left out of {path}, because it is no .npz file: {shortened(others, 3)}")
    return found
