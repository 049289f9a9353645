"""Load and save models, and load bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt import config, ir
from graphopt.assembly import (
    PathLike,
)
from graphopt.errors import UsageError

if TYPE_CHECKING:
    from graphopt.specialize.loaded import Bundle


def load(path: PathLike, *, allow_external: Sequence[PathLike] | None = None) -> ir.Model | Bundle:
    """Load what lies at ``path``: a model, as :func:`load_model` does, or a bundle of variants.

    A bundle is named by its folder, or by the ``plan.json`` in it. For type checkers, and to say where it is
    to run, there are :func:`load_model` and :class:`graphopt.Bundle`.

    Raises:
        UsageError: there is no such file.
        InvalidModel: it is neither, or it is damaged.
    """
    if not is_bundle(path):
        return load_model(path, allow_external=allow_external)
    from graphopt.specialize.loaded import Bundle

    return Bundle(path)


def load_model(path: PathLike, *, allow_external: Sequence[PathLike] | None = None) -> ir.Model:
    """Load a model from a file, whose suffix tells its form.

    ``.json`` is the JSON IR, ``.onnxjson`` onnx's own JSON, ``.onnxtxt`` and ``.txt`` are ONNX text,
    and everything else is ``.onnx``.

    External data is memory-mapped when it is first read. It has to lie in the model's folder, or
    in one of ``allow_external``.

    Raises:
        UsageError: there is no such file.
        InvalidModel: the file is not a model, is cut short, or its external data is missing.
    """
    if is_bundle(path):
        raise UsageError(
            f"{path} is a bundle, not a model",
            hint="graphopt run, inspect and verify take bundles; its models are the .onnx files in it",
        )
    allowed = config.current().allow_external if allow_external is None else allow_external
    return ir.load(path, allow_external=allowed)


def is_bundle(path: PathLike) -> bool:
    """Whether ``path`` names a bundle: its folder, or the ``plan.json`` in it."""
    from graphopt.specialize.bundle_plan import folder_of

    return folder_of(Path(path)) is not None


def save(model: ir.Model, path: PathLike, *, external_data: bool | None = None) -> list[Path]:
    """Write a model to ``path``, atomically; returns the files written, the model first.

    Args:
        model: the model; it is not changed.
        path: its suffix tells the form, as for :func:`load`.
        external_data: put large weights into a file beside the model. By default as the model
            came, and always above 2 GB or for the JSON IR.

    Raises:
        UsageError: ``path`` can't be written; nothing is left behind.
    """
    if external_data is None:
        external_data = config.current().external_data
    return ir.save(model, path, external_data=external_data)
