"""Libraries of kernels beside the models that commands write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path


def library_of(model: Path) -> Path:
    """The file for the kernels of the model in ``model``."""
    return model.with_suffix(".kernels.so")


def remove_stale(library: Path) -> bool:
    """Remove ``library`` if it is one of ours, of a model that one without kernels was written over.

    It stays where another model is called like it, too.
    """
    if not library.is_file():
        return False
    from graphopt import ir
    from graphopt.fusion.library import is_ours

    stem = library.name.removesuffix(".kernels.so")
    beside = [suffix for suffix in ir.suffixes() if library.with_name(f"{stem}{suffix}").exists()]
    if len(beside) > 1 or not is_ours(library):
        return False
    with contextlib.suppress(OSError):
        library.unlink()
    return not library.exists()


@contextlib.contextmanager
def writing(libraries: Sequence[str], target: Path) -> Iterator[None]:
    """Write the library of a model, if there is one, to ``target`` along with what the block writes.

    Raises:
        UsageError: it can't be written; the block is not run then.
    """
    if not libraries:
        yield
        return
    from graphopt.cli.output_paths import check_file
    from graphopt.fusion.library import writing_library

    check_file(target)
    (source,) = libraries
    with writing_library(Path(source), target):
        yield
