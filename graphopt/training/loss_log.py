"""A log of the losses of a training, as JSON lines."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from graphopt.errors import InvalidModel, UsageError
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class LossRecord:
    """One step of a training.

    Attributes:
        step: the number of steps done.
        loss: the loss before the update.
        seconds: the time since the log was created; a resumed training begins at 0 again.
    """

    step: int
    loss: float
    seconds: float


class LossLog:
    """Appends the loss of each step to a file; ``graphopt report --losses`` draws it.

    >>> trainer.fit(batches, watch=graphopt.LossLog("losses.jsonl"))      # doctest: +SKIP

    Args:
        path: the file; lines are appended to an existing one.

    Raises:
        UsageError: the file can't be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._begin = time.perf_counter()
        self._append("")

    def __call__(self, steps: int, loss: float) -> None:
        """Record a finished step; :meth:`graphopt.Trainer.fit` accepts this object as ``watch``."""
        seconds = round(time.perf_counter() - self._begin, 6)
        self._append(json.dumps({"step": steps, "loss": float(loss), "seconds": seconds}) + "\n")

    def _append(self, text: str) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"can't write {self._path}: {error.strerror or error}") from error


def read_losses(path: str | os.PathLike[str]) -> list[LossRecord]:
    """The records of a :class:`LossLog`, in order; a partial last line, of a run in progress, is skipped.

    Raises:
        UsageError: the file can't be read.
        InvalidModel: a line is not a record.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, 1) from error
    whole = text[: text.rfind("\n") + 1]
    records = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            data = json.loads(line)
            records.append(LossRecord(int(data["step"]), float(data["loss"]), float(data["seconds"])))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(path, number) from error
    return records


def _damaged(path: str | os.PathLike[str], number: int) -> InvalidModel:
    return InvalidModel(
        f"{path}, line {number}: not a record of a loss", hint="graphopt.LossLog writes such a file"
    )
