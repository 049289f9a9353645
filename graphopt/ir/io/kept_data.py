"""Weights that stay in the data files of the original, to which the written model refers."""

from __future__ import annotations

import os
from pathlib import Path

from graphopt.errors import UsageError
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.io.codecs import codec_of
from graphopt.ir.weights import MappedFile, MappedTensor, slots
from graphopt.util.weight_placement import WeightPlacement


class KeptData:
    """The data files that a model keeps when it is written.

    A file is kept if it was read for a model in ``folder``, and is directly in this folder: before a writer
    removes data, it searches only its own folder for models that read the data. Locations are relative to
    ``folder``.

    Args:
        folder: the folder of the written model, or the one of :class:`DataOf`.
        weights: the placement; no file is kept unless this is ``auto`` or ``keep``.
        alias: the prefix of locations, if there is one.
        nested: also keep files in folders below ``folder``, for a model that is not written.

    Attributes:
        folder: the folder, without symbolic links.
        nbytes: the bytes of the kept tensors in each file, by its location.
    """

    def __init__(
        self, folder: Path, weights: WeightPlacement, alias: str = "", *, nested: bool = False
    ) -> None:
        self.folder = Path(os.path.realpath(folder))
        self._alias = alias
        self._weights = weights
        self._nested = nested
        self._files: dict[str, MappedFile] = {}
        self._counted: set[tuple[str, int, int]] = set()
        self.nbytes: dict[str, int] = {}

    def location(self, tensor: MappedTensor) -> str | None:
        """The location of ``tensor`` for the written model; ``None`` if the tensor must be written."""
        file = tensor.file
        if self._weights not in ("auto", "keep") or file.folder != self.folder:
            return None
        if not (file.path.is_relative_to(self.folder) if self._nested else file.path.parent == self.folder):
            return None
        location = (Path(self._alias) / file.path.relative_to(self.folder)).as_posix()
        self._files[location] = file
        place = (location, tensor.offset or 0, tensor.nbytes)
        if place not in self._counted:  # tied tensors count once
            self._counted.add(place)
            self.nbytes[location] = self.nbytes.get(location, 0) + tensor.nbytes
        return location

    @property
    def names(self) -> list[str]:
        """The locations of the kept files."""
        return list(self._files)

    @property
    def state(self) -> str:
        """The identity, size and modification time of each kept file, as text."""
        return repr([(location, file.identity) for location, file in self._files.items()])

    def is_in_place(self, locked: bool) -> bool:
        """Whether all kept files are still those that were read, and remain until the model is published.

        Args:
            locked: whether the folder is locked, so that no other writer removes a file. ``keep`` does not
                require the lock: on file systems without locks, graphopt removes no data.
        """
        if not self._files:
            return True
        return (locked or self._weights == "keep") and all(file.is_in_place for file in self._files.values())


def check_kept(model: onnx_ir.Model, path: Path) -> None:
    """Check that the external data of ``model`` can be kept when the model is written to ``path``.

    Raises:
        UsageError: the format of ``path`` has no data files, or a data file is not directly in its folder.
    """
    codec, kept = codec_of(path), KeptData(path.parent, "keep")
    for slot in slots(model):
        tensor = slot.tensor
        if codec.external_data is None and isinstance(tensor, onnx_ir.ExternalTensor):
            raise UsageError(
                f"can't write {path} and keep its weights: files of {codec.name} contain all tensors",
                hint="give a file name with .onnx, or --weights inside",
            )
        if not isinstance(tensor, MappedTensor) or kept.location(tensor) is not None:
            continue
        file = tensor.file
        if file.folder is None:
            continue
        hint, reason = "--weights copy", "only data files in the same folder can be kept"
        if file.path.parent == file.folder:
            reason = "--weights keep requires OUT in the folder of IN's data files"
            hint = f"write into {file.folder}, or --weights copy"
        raise UsageError(f"can't write {path} and keep its weights in {file.path}: {reason}", hint=hint)
