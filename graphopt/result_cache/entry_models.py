"""Models in entries of the cache, which refer to data of the original instead of containing it.

The original's data files are parts of the key of the result, so that a later original with the same key has
equal data in files of the same names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.util.file_search import mentions

if TYPE_CHECKING:
    from graphopt import ir

#: The alias of the original's folder in the locations of data.
_ORIGINAL = "graphopt-original"


def save_entry(model: ir.Model, path: Path, source: Path | None) -> None:
    """Write the result ``model`` to ``path``, with references to the data of the original at ``source``.

    Args:
        model: the result.
        path: its file in the entry.
        source: the original; ``None`` for one without files.

    Raises:
        UsageError, ResourceLimit, UnsupportedModel: as for :func:`graphopt.ir.save`.
    """
    from graphopt import ir

    if source is None or not ir.codec_of(path).external_data:
        ir.save(model, path)
        return
    ir.save(model, path, data_of=ir.DataOf(source.parent, _ORIGINAL))


def load_entry(path: Path, source: Path | None) -> ir.Model:
    """The model at ``path`` of an entry; arguments as for :func:`save_entry`, errors as for loading."""
    from graphopt import ir

    return ir.load(path, data_of=None if source is None else ir.DataOf(source.parent, _ORIGINAL))


def refers_to_original(path: Path) -> bool:
    """Whether the model at ``path`` of an entry refers to data of the original; raises OSError."""
    return mentions(path, _ORIGINAL)
