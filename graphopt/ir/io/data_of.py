"""References to data in the folder of another model."""

from __future__ import annotations

from pathlib import Path

from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class DataOf:
    """The data in the folder of another model, to which a model without complete data refers.

    Attributes:
        folder: the folder.
        alias: the name that replaces the path of the folder in the locations of data.
    """

    folder: Path
    alias: str
