"""Load and save models, and load bundles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt import config, ir
from graphopt.assembly import ModelLike, PathLike, loaded
from graphopt.errors import UsageError
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    import onnx

    from graphopt.specialization.bundle.load import Bundle


@checked()
def load(source: ModelLike, *, allow_external: Sequence[PathLike] | None = None) -> ir.Model | Bundle:
    """Load a model, as :func:`load_model` does, or a bundle of variants.

    A bundle is named by its folder, or by the ``plan.json`` in it. For type checkers, and to choose where a
    bundle runs, there are :func:`load_model` and :class:`graphopt.Bundle`.

    Raises:
        TypeError: ``source`` is no form of a model.
        UsageError: there is no such file.
        InvalidModel: it is neither, or it is damaged.
    """
    if isinstance(source, (str, os.PathLike)) and is_bundle(source):
        from graphopt.specialization.bundle.load import Bundle

        return Bundle(source)
    return load_model(source, allow_external=allow_external)


@checked()
def load_model(
    source: ModelLike,
    *,
    allow_external: Sequence[PathLike] | None = None,
    base_dir: PathLike | None = None,
) -> ir.Model:
    """Load a model from a file, an ``onnx.ModelProto``, which is left as it is, or serialized bytes.

    The suffix of a file determines its form: ``.json`` is the JSON IR, ``.onnxjson`` onnx's own JSON,
    ``.onnxtxt`` and ``.txt`` are ONNX text, and everything else is ``.onnx``.

    External data is memory-mapped when it is first read. It has to lie in the folder of the model's file, or
    in one of ``allow_external``.

    >>> load_model("model.onnx").graph.name                              # doctest: +SKIP
    'resnet50'
    >>> load_model(onnx.load("model.onnx", load_external_data=False), base_dir=".")    # doctest: +SKIP

    Args:
        source: a model in any form (:data:`graphopt.ModelLike`).
        allow_external: further folders that external data may lie in.
        base_dir: the folder of the external data of a ModelProto or of bytes.

    Raises:
        TypeError: ``source`` is no form of a model.
        UsageError: there is no such file.
        InvalidModel: it is not a model, is truncated, or its external data is missing.
    """
    if isinstance(source, (str, os.PathLike)):
        if is_bundle(source):
            raise UsageError(
                f"{source} is a bundle, not a model",
                hint="graphopt run, inspect and verify take bundles; its models are the .onnx files in it",
            )
        if base_dir is not None:
            raise UsageError("base_dir is for models in memory; a file's own folder holds its external data")
    allowed = config.current().allow_external if allow_external is None else allow_external
    return ir.as_model(source, allow_external=allowed, base_dir=base_dir)


@checked()
def to_proto(model: ModelLike) -> onnx.ModelProto:
    """A new ``onnx.ModelProto`` of a model, which holds all weights, those of external files included.

    >>> onnx.save(to_proto(model), "model.onnx")                         # doctest: +SKIP

    Above 2 GB, protobuf can't serialize it in one piece: save it with
    ``onnx.save(..., save_as_external_data=True)``, or the model with :func:`save`.

    Raises:
        TypeError, UsageError, InvalidModel: as for :func:`load_model`.
    """
    return ir.to_whole_proto(loaded(model))


@checked()
def is_bundle(path: PathLike) -> bool:
    """Whether ``path`` names a bundle: its folder, or the ``plan.json`` in it."""
    from graphopt.specialization.bundle.plan import folder_of

    return folder_of(Path(path)) is not None


@checked()
def save(model: ModelLike, path: PathLike, *, external_data: bool | None = None) -> list[Path]:
    """Write a model to ``path``, atomically; returns the files written, the model first.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        path: its suffix determines the form, as for :func:`load_model`.
        external_data: put large weights into a file beside the model. By default as the model
            came, and always above 2 GB or for the JSON IR.

    Raises:
        UsageError: ``path`` can't be written; nothing is left behind.
    """
    if external_data is None:
        external_data = config.current().external_data
    return ir.save(loaded(model), path, external_data=external_data)
