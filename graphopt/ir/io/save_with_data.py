"""Save a model with external data: publish both files so that no reader combines different models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from graphopt import publish
from graphopt.errors import UsageError, unwritable
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.io.codecs import Codec, ExternalData
from graphopt.ir.io.data_file_replacement import DataFile, removable, remove_orphans, remove_unread
from graphopt.ir.io.data_of import DataOf
from graphopt.ir.io.external_data import Change, changed, write_external_data
from graphopt.ir.io.kept_data import KeptData
from graphopt.ir.io.load import identity, old_data
from graphopt.util.weight_placement import WeightPlacement


class WrittenFiles(list[Path]):
    """The files of a written model, the model first.

    Attributes:
        kept: the bytes of its weights in data files of the original, by the location of the file relative to
            the model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, int] = {}


@contextlib.contextmanager
def saving_with_data(
    model: onnx_ir.Model,
    path: Path,
    codec: Codec,
    external: ExternalData,
    threshold: int,
    weights: WeightPlacement,
    data_of: DataOf | None,
) -> Iterator[WrittenFiles]:
    """Publish the model and its data file. At any time, ``path`` is the old model or the complete new one.

    Raises:
        UsageError: ``path`` can't be written, or a data file to keep has changed since the model was read.
        ResourceLimit: the disk is full.
    """
    written = WrittenFiles()
    with contextlib.ExitStack() as stack:
        try:
            for target in (path, path.with_name(path.name + external.suffix)):
                publish.check_protected(target)
            files = _Files(model, path, codec, external, threshold, stack)
            kept = KeptData(path.parent, weights)
            if data_of is not None:
                kept = KeptData(data_of.folder, "keep", data_of.alias)
            files.prepare(kept)
        except OSError as error:
            raise unwritable(path, error) from error
        yield written
        try:
            if not files.publish():
                if weights == "keep":
                    raise UsageError(
                        f"can't write {path}: the data of its original changed in the meantime",
                        hint="try again, or --weights copy",
                    )
                files.prepare(KeptData(path.parent, "copy"))
                files.publish()
        except OSError as error:
            raise unwritable(path, error) from error
    written += files.paths
    written.kept = files.kept.nbytes


class _Files:
    """The temporary files of a model and its data, which ``stack`` removes."""

    def __init__(
        self,
        model: onnx_ir.Model,
        path: Path,
        codec: Codec,
        external: ExternalData,
        threshold: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._model, self._path, self._codec, self._threshold = model, path, codec, threshold
        self._external = external
        self._content = stack.enter_context(
            publish.temporary_file(path.with_name(path.name + external.suffix))
        )
        self._staged = stack.enter_context(publish.temporary_file(path))

    def prepare(self, kept: KeptData) -> None:
        """Write the temporary files; raises OSError."""
        path, suffix = self._path, self._external.suffix
        self.kept = kept
        with open(self._content, "wb") as file:
            self._relocated: Callable[[str], list[Change]] = write_external_data(
                self._model,
                file,
                self._threshold,
                attributes=self._external.attributes,
                kept_location=self.kept.location,
            )
            self._is_needed = file.tell() > 0
        self._before, self._old = identity(path), old_data(path)
        self._data = DataFile(path, suffix, self._content, first=not self._old.files)
        self._write()

    def publish(self) -> bool:
        """Rename the files; ``False``, without an effect, if a kept data file has changed or may be removed.

        Raises:
            OSError: a file can't be renamed.
        """
        path, suffix = self._path, self._external.suffix
        with publish.locked(path.parent) as is_locked, publish.deferred_interrupts():
            if is_locked:
                remove_orphans(path.parent, publish.take_unfinished(path.parent))
            if not self.kept.is_in_place(is_locked):
                return False
            self._note()
            while self._is_needed and not self._data.claim(is_locked):
                self._write()
                self._note()
            if is_locked and identity(path) != self._before:
                self._old = old_data(path)
            try:
                os.replace(self._staged, path)
            except OSError:
                if self._is_needed and self._data.is_new:
                    self._data.path.unlink(missing_ok=True)
                raise
            if is_locked:
                used = [self._data.path, *(path.parent / name for name in self.kept.names)]
                remove_unread(removable(self._old, path, suffix), path, used)
        return True

    @property
    def paths(self) -> list[Path]:
        """The published files."""
        return [self._path, self._data.path] if self._is_needed else [self._path]

    def _write(self) -> None:
        with changed(self._relocated(self._data.path.name)), open(self._staged, "wb") as file:
            file.writelines(self._codec.save(self._model, self._threshold))

    def _note(self) -> None:
        old = [file.name for file in removable(self._old, self._path, self._external.suffix)]
        publish.note_unfinished(self._staged, [self._data.path.name, *old])
