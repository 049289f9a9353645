"""The model of a plan: in memory, or in a file after the release of the original."""

from __future__ import annotations

import weakref
from pathlib import Path

from graphopt import ir, publish
from graphopt.errors import GraphoptError, UsageError
from graphopt.process.fork_safe_lock import ForkSafeLock


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

    def spill(self, folder: publish.ScratchFolder | None = None) -> None:
        """Drop the model from memory; does nothing if this was done before.

        Args:
            folder: the folder with the model as ``model.onnx``; by default a temporary one is written.

        Raises:
            UsageError, ResourceLimit: the file can't be written; the model is kept in memory.
        """
        with self._lock:
            if self._model is None:
                return
            if folder is None:
                folder = publish.ScratchFolder()
                ir.save(self._model, folder.path / "model.onnx", external_data=True)
            self._folder, self._path, self._model = folder, folder.path / "model.onnx", None
