"""The model that an executor was made of, for as long as it is needed."""

from __future__ import annotations

import os
from pathlib import Path

from graphopt import config, ir
from graphopt.assembly import ModelLike, loaded
from graphopt.driver import copy
from graphopt.errors import UsageError


class Original:
    """A model that can be let go, and read from its file again.

    Args:
        given: a model in any form; of one in memory, a copy is held.

    Attributes:
        model: the model; ``None`` once it was released.
    """

    def __init__(self, given: ModelLike) -> None:
        self._settings = config.current()  # whoever reads it again may run under others
        self._path = Path(given).absolute() if isinstance(given, (str, os.PathLike)) else None
        self.model: ir.Model | None = copy(loaded(given)) if isinstance(given, ir.Model) else loaded(given)

    def find(self) -> ir.Model | None:
        """The model, which is not held if it has to be read again; ``None`` if that is not possible."""
        found = self.model
        if found is None and self._path is not None:
            with config.using(self._settings):
                found = loaded(self._path)
        return found

    def read(self) -> ir.Model:
        """The model, as :meth:`find` finds it.

        Raises:
            UsageError: it was released, and came from no file, or the file is gone.
            InvalidModel: the file is no model any more.
        """
        found = self.find()
        if found is None:
            raise UsageError(
                "the original was released, and came from no file", hint="compile the model from its path"
            )
        return found

    def release(self) -> None:
        """Hold it no longer."""
        self.model = None

    def again(self) -> Original:
        """Another one that holds the model, whatever becomes of this one; raises as :meth:`read` does."""
        other = Original.__new__(Original)
        other._settings, other._path, other.model = self._settings, self._path, self.read()
        return other
