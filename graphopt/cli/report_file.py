"""The file of ``--report``, which is also written if the command fails or is interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graphopt import publish
from graphopt.cli.invocation import Run
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.error_messages import failure_of
from graphopt.errors import ExitStatus, GraphoptError, is_interruption


def write_report(path: Path | None, output: Output) -> None:
    """Write the JSON value of ``output`` to ``path``, if a path is given."""
    if path is not None:
        publish.write(path, output.json() + "\n")


@contextlib.contextmanager
def reporting(path: Path | None, run: Run, partial: Callable[[bool], Output]) -> Iterator[None]:
    """If the ``with`` block fails or is interrupted, write a report of its work so far.

    After an interruption the report is also printed, so that ``--json`` always prints a value.

    Args:
        path: the file of the report, if one is requested.
        run: the context of the command.
        partial: the output so far; its argument is whether the command was interrupted.
    """
    try:
        yield
    except BaseException as error:
        interrupted = is_interruption(error)
        output = partial(interrupted)
        if isinstance(error, Exception) and not interrupted:
            failure = failure_of(
                error,
                debug=run.invocation.debug,
                kept=run.save_repro is not None,
                files=(*run.invocation.arguments, *run.invocation.names),
                names=run.invocation.names,
            )
            output = Output({**output.data, "error": failure.to_dict(), "status": int(failure.status)})
        try:
            write_report(path, output)
        except (OSError, GraphoptError) as fault:  # the first error is the one to report
            run.console.warn(f"the report is not written: {fault}")
        if interrupted:
            output.show(run.console)
        raise


def report_of_one(run: Run, source: Path) -> Callable[[bool], Output]:
    """The report of a command on the model in ``source`` without a result."""

    def partial(interrupted: bool) -> Output:
        data: Mapping[str, Any] = {"source": run.invocation.name_of(source), "interrupted": interrupted}
        return Output(dict(data), status=ExitStatus.INTERRUPTED if interrupted else 0)

    return partial
