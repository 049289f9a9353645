"""A progress bar for :meth:`graphopt.Trainer.fit`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressBar:
    """Shows steps and the loss on stderr during a ``with`` block, if stderr is a terminal.

    >>> with ProgressBar(1000) as bar:                                   # doctest: +SKIP
    ...     trainer.fit(batches, watch=bar)

    Args:
        steps: the expected number of steps; ``None`` if unknown.
        what: the text before the bar.
    """

    def __init__(self, steps: int | None = None, what: str = "training") -> None:
        self._steps, self._what = steps, what
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressBar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._progress.start()
        self._task = self._progress.add_task(self._what, total=self._steps, loss="")
        return self

    def __call__(self, steps: int, loss: float) -> None:
        """Show a finished step; :meth:`graphopt.Trainer.fit` accepts this object as ``watch``."""
        if self._progress is not None:
            self._progress.update(self._task, advance=1, loss=f"{loss:.4g}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
