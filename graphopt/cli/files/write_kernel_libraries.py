"""Kernel libraries, written next to the models of commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.util.model_suffixes import suffixes

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.config import Settings


def library_of(model: Path) -> Path:
    """The file for the kernels of the model at the path ``model``."""
    return model.with_suffix(".kernels.so")


def remove_stale(library: Path) -> bool:
    """Remove the kernel library ``library`` of a model that was replaced by a model without kernels.

    Files of other programs are kept, and so is a library that a model of the same name in another format may
    use.

    Returns:
        Whether the library was removed.
    """
    if not library.is_file():
        return False
    from graphopt.fusion.kernel_library import is_ours

    stem = library.name.removesuffix(".kernels.so")
    beside = [suffix for suffix in suffixes() if library.with_name(f"{stem}{suffix}").exists()]
    if len(beside) > 1 or not is_ours(library):
        return False
    with contextlib.suppress(OSError):
        library.unlink()
    return not library.exists()


@contextlib.contextmanager
def writing(libraries: Sequence[str], target: Path) -> Iterator[None]:
    """Write the library of a model to ``target``, if any, with the files of the ``with`` block.

    Raises:
        UsageError: ``target`` can't be written; then the block does not run.
    """
    if not libraries:
        yield
        return
    from graphopt.cli.files.check_output_paths import check_file
    from graphopt.fusion.kernel_library import writing_library

    check_file(target)
    (source,) = libraries
    with writing_library(Path(source), target):
        yield


@contextlib.contextmanager
def writing_kernels(model: ir.Model, target: Path, settings: Settings) -> Iterator[list[Path]]:
    """Build the kernels of ``model``, and write their library beside ``target``, with the files of the block.

    Yields the path of the library in a list, which is empty for a model without kernels.

    Raises:
        UsageError: the library can't be written; then the block does not run.
    """
    from graphopt.fusion.kernel_library import libraries_for

    libraries = libraries_for(model, settings).paths
    with writing(libraries, library_of(target)):
        yield [library_of(target)] if libraries else []
    if not libraries:
        remove_stale(library_of(target))
