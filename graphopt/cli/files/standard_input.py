"""A model from standard input: ``-`` in place of its path."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from graphopt import ir, publish
from graphopt.cli.invocation import Invocation
from graphopt.errors import UsageError, unwritable

NAME = "standard input"
#: The key of each reference to external data, so that other models are not parsed.
_LOCATION = "location"


def read_model(context: click.Context) -> Path:
    """A temporary copy of standard input, which is removed with ``context``; the same for every ``-``.

    Raises:
        UsageError: standard input is a terminal, can't be read, or is a model with external data.
        ResourceLimit: the disk is full.
    """
    invocation = context.ensure_object(Invocation)
    if invocation.stdin is not None:
        return invocation.stdin
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal, not a model", hint="redirect it: - < model.onnx")
    scratch = publish.ScratchFolder()
    context.call_on_close(scratch.close)
    path = scratch.path / "stdin.onnx"
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    except OSError as error:
        raise unwritable(path, error) from error
    if ir.data_files(path, _LOCATION):
        raise UsageError("a model from standard input can't have external data", hint="name its file")
    invocation.stdin, invocation.names[str(path)] = path, NAME
    return path
