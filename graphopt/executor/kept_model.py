"""The model of a plan: in memory, or in a file after the release of the original."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path

from graphopt import ir, publish
from graphopt.errors import GraphoptError, UsageError
from graphopt.util.fork_safe_lock import ForkSafeLock


class KeptModel:
    """A model that can be moved from memory to a file. Thread-safe.

    The session of a plan has its own copy of the weights, so that the model is needed for inspection only.

    Args:
        model: the model, which must not change afterwards.

    Attributes:
        nodes: its number of nodes.
    """

    def __init__(self, model: ir.Model) -> None:
        self.nodes = ir.count_nodes(model.graph)
        self._model: ir.Model | None = model
        self._last = weakref.ref(model)
        self._path: Path | None = None
        self._folder: publish.ScratchFolder | None = None
        self._lock = ForkSafeLock()

    def get(self) -> ir.Model:
        """The model. After a spill, callers share one object as long as any caller has a reference to it.

        Raises:
            UsageError: the file can't be read.
        """
        model = self._model
        if model is not None:
            return model
        with self._lock:
            model = self._last()
            if model is None:
                assert self._path is not None
                try:
                    model = ir.load(self._path)
                except GraphoptError as error:
                    raise UsageError(
                        f"the model of a plan can't be read again after the release: {error.message}",
                        hint="flush the executor to create its plans again",
                    ) from error
                self._last = weakref.ref(model)
            return model

    @property
    def is_stored(self) -> bool:
        """Whether the model is in a file."""
        return self._path is not None

    def store(self, folder: publish.ScratchFolder, name: str = "model.onnx") -> None:
        """Declare that the file ``name`` in ``folder`` contains the model, which remains in memory."""
        with self._lock:
            if self._path is None:
                self._folder, self._path = folder, folder.path / name

    def spill(self) -> None:
        """Drop the model from memory; raises errors as :func:`store_together` does."""
        store_together([self])
        self._model = None


def store_together(models: Iterable[KeptModel]) -> None:
    """Write models to files, and keep them in memory; models in a file are skipped.

    Weights that several models share are written once.

    Raises:
        UsageError: no folder can be created.
        OSError: a file can't be written.
    """
    new = {f"{number}.onnx": kept for number, kept in enumerate(models) if not kept.is_stored}
    if new:
        folder = publish.ScratchFolder()
        ir.save_together({name: kept.get() for name, kept in new.items()}, folder.path, "weights.bin")
        for name, kept in new.items():
            kept.store(folder, name)
