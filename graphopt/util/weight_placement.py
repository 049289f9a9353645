"""The placement of the weights of a written model."""

from __future__ import annotations

from typing import Literal, get_args

#: ``auto``: ``keep`` where the model is written to the original's folder, else ``copy``; ``keep``: unchanged
#: tensors stay in the original's data files, which the written model refers to; ``copy``: in files of the
#: written model, as in the original; ``inside``: in the model's own file; ``beside``: in a file beside it.
WeightPlacement = Literal["auto", "keep", "copy", "inside", "beside"]
PLACES: tuple[WeightPlacement, ...] = get_args(WeightPlacement)
