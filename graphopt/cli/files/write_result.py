"""Results of ``optimize``, written as a model or as a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from graphopt import config

if TYPE_CHECKING:
    from graphopt.api import Result
    from graphopt.specialization.build_variants import Specialization, Specialized


def write_result(result: Result | Specialized, target: Path, request: Specialization | None) -> list[Path]:
    """Write a result to ``target``; returns the files."""
    from graphopt import ir
    from graphopt.model_arguments import save

    if request is None:
        assert result.model is not None
        return save(result.model, target)
    from graphopt.specialization.build_variants import Specialized
    from graphopt.specialization.bundle.save import save_bundle

    assert isinstance(result, Specialized)
    if result.model is None:
        return save_bundle(result, target)
    weights = config.current().weights
    if result.branches and not request.single_file and not ir.has_external_data(result.model):
        weights = "inside" if weights == "inside" else "beside"  # branches share only weights in a data file
    return save(result.model, target, weights=weights)
