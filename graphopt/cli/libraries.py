"""Libraries of kernels beside the models that commands write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def writing(libraries: Sequence[str], target: Path) -> Iterator[None]:
    """Write the library of a model, if there is one, to ``target`` along with what the block writes.

    Raises:
        UsageError: it can't be written; the block is not run then.
    """
    if not libraries:
        yield
        return
    from graphopt.cli.outputs import check_file
    from graphopt.fusion.inventory import writing_library

    check_file(target)
    (source,) = libraries
    with writing_library(Path(source), target):
        yield
