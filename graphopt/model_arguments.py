"""Models in the forms that callers use."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from graphopt import config, ir
from graphopt.util.argument_checks import checked
from graphopt.util.weight_placement import WeightPlacement

if TYPE_CHECKING:
    from graphopt.ort.session import Source

PathLike = str | os.PathLike[str]
#: A model in any form that public functions accept.
ModelLike = ir.ModelLike


def loaded(model: ModelLike, allow_external: Sequence[PathLike] | None = None) -> ir.Model:
    """``model`` as a :class:`graphopt.ir.Model`: the caller's own object if it is one, otherwise a new one.

    Args:
        model: a model in any form.
        allow_external: folders, besides the model's own, that may contain external data; by default, the
            setting ``allow_external``.

    Raises:
        TypeError: ``model`` has none of the accepted types.
        UsageError: the file does not exist.
        InvalidModel: the model is invalid, or its external data is missing.
    """
    allowed = config.current().allow_external if allow_external is None else allow_external
    return ir.as_model(model, allow_external=allowed)


def in_ort_readable_form(
    model: ModelLike, allow_external: Sequence[PathLike] | None = None
) -> ir.Model | Source:
    """``model`` in the closest form that onnxruntime reads; arguments as for :func:`loaded`."""
    if isinstance(model, (onnx.ModelProto, bytes)):
        return ir.serialized(model) or loaded(model, allow_external)
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else loaded(model, allow_external)


def copy(model: ir.Model) -> ir.Model:
    """A copy of ``model`` that shares its tensors, which are never edited in place."""
    other = model.clone()
    other.meta.update(model.meta)
    return other


@checked
def to_proto(model: ModelLike) -> onnx.ModelProto:
    """A new ``onnx.ModelProto`` of a model, with all weights, including those in external files.

    >>> onnx.save(to_proto(model), "model.onnx")                         # doctest: +SKIP

    protobuf can't serialize models above 2 GB in one piece: save them with
    ``onnx.save(..., save_as_external_data=True)``, or save the model with :func:`save`.

    Raises:
        TypeError, UsageError, InvalidModel: as for :func:`load_model`.
    """
    return ir.to_whole_proto(loaded(model))


@checked
def save(
    model: ModelLike,
    path: PathLike,
    *,
    weights: WeightPlacement | None = None,
    external_data: bool | None = None,
) -> list[Path]:
    """Write a model to ``path``, atomically; returns the files written, the model first.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        path: its suffix determines the format, as for :func:`load_model`.
        weights: the file of large weights; by default the setting ``weights``, which is ``auto``.
            ``keep``: unchanged ones stay in the data files of the original, which must be in the folder of
            ``path``; the result needs these files. ``copy``: as in the original; separately above 2 GB and
            for the JSON IR. ``inside``: in ``path``; ``beside``: in a data file beside it. ``auto``: ``keep``
            in the folder of the original, else ``copy``.
        external_data: deprecated, use ``weights="beside"`` or ``"inside"``.

    Raises:
        TypeError: both ``weights`` and ``external_data`` are given.
        UsageError: ``path`` can't be written, or the weights can't be kept; no files remain.
        ResourceLimit: the disk is full, or the weights exceed 2 GB and ``weights`` is ``inside``.
    """
    weights = placement(weights, external_data)
    return ir.save(loaded(model), path, weights=weights or config.current().weights)


def placement(
    weights: WeightPlacement | None, external_data: bool | None, *, stacklevel: int = 4
) -> WeightPlacement | None:
    """``weights`` of a function ``save``, or the value that its former argument ``external_data`` selects.

    Args:
        stacklevel: as for ``warnings.warn``; by default, the caller of the ``checked`` function that calls
            this one.

    Raises:
        TypeError: both are given.
    """
    if external_data is None:
        return weights
    place: WeightPlacement = "beside" if external_data else "inside"
    if weights is not None:
        raise TypeError(
            f"external_data=... and weights=... of save() exclude each other: use weights={place!r}"
        )
    message = f"external_data=... of save() is deprecated: use weights={place!r}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
    return place
