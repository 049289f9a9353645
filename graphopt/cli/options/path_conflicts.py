"""Paths in the arguments of a command: paths that it writes to, and conflicts between paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from graphopt.cli.files.check_output_paths import check_file, check_weights, open_pipe
from graphopt.cli.options.parameter_types import ReadsArrays, ReadsData, ReadsModel, Writes
from graphopt.errors import UsageError
from graphopt.util.file_search import mentions
from graphopt.util.weight_placement import WeightPlacement

_Kind = ReadsModel | ReadsArrays | ReadsData | Writes


def check_apart(context: click.Context) -> None:
    """Check that a command overwrites none of its inputs, and writes no file twice.

    A command that works in place may overwrite its models, but no other input.

    Raises:
        UsageError: an input would be overwritten, or a file written twice.
    """
    models = [(name, path) for kind, name, path in _paths(context) if isinstance(kind, ReadsModel)]
    data = [(name, path) for kind, name, path in _paths(context) if _is_kept(kind)]
    read = [*models, *data]
    written: list[tuple[str, Path]] = []
    for kind, name, path in _paths(context):
        if not isinstance(kind, Writes):
            continue
        if path.is_dir() and kind.folder:
            inside = next((file for _, file in read if file.exists() and path.samefile(file.parent)), None)
            if inside is not None and not kind.in_place:
                raise UsageError(
                    f"{name} might write over {inside}, which is read",
                    hint=f"give {name} a folder of its own",
                )
            continue
        others = [*([] if kind.in_place else models), *data, *written]
        other = next((option for option, found in others if _is_same(found, path)), None)
        other = other or next((option for option, found in data if _is_read_from(found, path)), None)
        if other is not None:
            raise UsageError(
                f"{name} would write over {path}, which {other} names, too", hint=f"give {name} another file"
            )
        written.append((name, path))
    _check_data(context)


def _check_data(context: click.Context) -> None:
    """Check that no command overwrites the weights of a model that it reads."""
    models = [path for kind, _, path in _paths(context) if isinstance(kind, ReadsModel)]
    for kind, name, path in _paths(context):
        if not isinstance(kind, Writes) or not path.is_file():
            continue
        for model in models:
            if not _may_read(model, path.name):  # avoids the import of onnx
                continue
            from graphopt import ir

            if any(_is_same(file, path) for file in ir.data_files(model, path.name)):
                raise UsageError(
                    f"{name} would write over {path}, which holds weights of {model}",
                    hint=f"give {name} another file",
                )


def _may_read(model: Path, name: str) -> bool:
    """Whether the file ``model`` may name ``name`` as the file of its weights."""
    try:
        return model.is_file() and mentions(model, name)
    except OSError:  # loading the file reports this
        return False


def written_paths(context: click.Context) -> list[Path]:
    """The files and folders that a command may write to."""
    return [path for kind, _, path in _paths(context) if isinstance(kind, Writes)]


def check_writable(context: click.Context) -> None:
    """Check that the files that a command writes can be written.

    A pipe stays open until the command ends, so that its reader does not take the check for the end.

    Raises:
        UsageError: the folder of a file is missing or not writable, or no process reads a pipe.
    """
    for kind, _, path in _paths(context):
        if not isinstance(kind, Writes):
            continue
        if not kind.folder:
            check_file(path)
        if path.is_fifo():
            context.call_on_close(partial(os.close, open_pipe(path)))


def check_kept_weights(context: click.Context, weights: WeightPlacement) -> None:
    """Check before a command starts that results can keep their weights in the files of its models.

    ``optimize`` derives the paths of results itself, and checks them.

    Raises:
        UsageError: they can't, and ``weights`` requires it.
    """
    names = [parameter.name for parameter in context.command.params]
    if weights != "keep" or "weights" not in names or context.command.name == "optimize":
        return
    models = [path for kind, _, path in _paths(context) if isinstance(kind, ReadsModel)]
    for kind, name, path in _paths(context):
        if isinstance(kind, Writes) and name in ("-o", "OUT"):
            for model in models:
                check_weights(model, path, weights)


def _paths(context: click.Context) -> Iterator[tuple[_Kind, str, Path]]:
    """The files that the parameters name: kind of the parameter, its name, and the path."""
    for parameter in context.command.get_params(context):
        kind, value = parameter.type, context.params.get(parameter.name or "")
        if value is None or not isinstance(kind, _Kind):
            continue
        is_option = isinstance(parameter, click.Option)
        name = parameter.opts[0] if is_option else parameter.make_metavar(context).strip(".")
        for item in value if isinstance(value, tuple) else (value,):
            text = str(item)
            file = text.rpartition(":")[2] if isinstance(kind, ReadsArrays) else text
            yield kind, name, Path(file)


def _is_kept(kind: _Kind) -> bool:
    """Whether an argument names data that no command may overwrite."""
    return isinstance(kind, ReadsArrays) or (isinstance(kind, ReadsData) and not kind.replaceable)


def _is_read_from(folder: Path, path: Path) -> bool:
    """Whether ``path`` is a file of arrays in ``folder``, whose arrays are all read."""
    return path.suffix == ".npz" and path.is_file() and folder.is_dir() and folder.samefile(path.parent)


def _is_same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return os.path.samefile(one, other)
    return one.absolute() == other.absolute()
