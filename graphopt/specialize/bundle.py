"""A bundle: a folder with a model for each variant, one file of weights, and the plan that picks one."""

from __future__ import annotations

from pathlib import Path

from graphopt.specialize.build import Specialized


def save_bundle(found: Specialized, folder: Path) -> list[Path]:
    """Write ``found`` to ``folder``."""
    raise NotImplementedError
