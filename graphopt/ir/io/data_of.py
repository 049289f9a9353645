"""Data of a model in another folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataOf:
    """The data of a model in another folder, for models that are not complete without it.

    Attributes:
        folder: the folder.
        alias: the name that replaces it in the locations of data, like that of a folder beside the model.
    """

    folder: Path
    alias: str
