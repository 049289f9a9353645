"""A model as an object, and in a form that onnxruntime can load."""

from __future__ import annotations

import os
from collections.abc import Sequence

from graphopt import ir, publish
from graphopt.errors import MEMORY_HINT, InvalidModel, ResourceLimit, exhausted
from graphopt.ort.session import ModelInFolder, Source

#: Bytes of initializers beyond which a model is passed to onnxruntime as a file with a data file, which
#: onnxruntime maps.
MAPPED_BYTES = 1 << 28
#: Bytes of initializers beyond which a model is passed to another process as a file: the process would need
#: several copies of the bytes.
_SENT = 1 << 24


class Artifact:
    """A model in a form that onnxruntime can load, with the temporary files for it.

    If onnxruntime would compute outputs of its bodies incorrectly (:mod:`graphopt.ir.body_outputs`), the form
    has copies of these outputs, once :meth:`corrected` was called.

    A large model whose weights are in data files refers to these files, which onnxruntime maps. Other large
    models are written to a temporary folder.

    Args:
        model: a model, its serialized form, or its path, in any file format.
        allow_external: folders outside the model's own that may contain external data.
        is_sent: whether :attr:`source` is for another process, for which smaller models count as large.

    Attributes:
        folder: the temporary folder with ``model.onnx``, once a large model was written.
    """

    def __init__(
        self,
        model: ir.Model | Source,
        allow_external: Sequence[str | os.PathLike[str]] = (),
        *,
        is_sent: bool = False,
    ) -> None:
        if isinstance(model, (str, os.PathLike)) and not ir.codec_of(model).ort_reads:
            model = ir.load(model, allow_external=allow_external)
        self._given = model
        self._allow_external = allow_external
        self._in_memory = _SENT if is_sent else MAPPED_BYTES
        self._source: Source | None = None
        self._kept: ir.KeptData | None = None
        self.folder: publish.ScratchFolder | None = None

    @property
    def source(self) -> Source:
        """The source for onnxruntime; written on first access, as it may be large."""
        given = self._given
        if not isinstance(given, ir.Model):
            return given
        # if another process has replaced a data file, the mapped tensors still have its contents: write them
        if self._source is None or (self._kept is not None and not self._kept.is_in_place(locked=False)):
            self._source = self._write(given)
        return self._source

    def corrected(self) -> ir.Model:
        """Load the model; if it has copies of outputs of bodies, :attr:`source` is then written from it.

        Raises:
            InvalidModel, UsageError: it can't be read.
        """
        model = self.model()
        if model.graph.meta.get(ir.COPIED_OUTPUTS):
            self._given = model
        return model

    def model(self) -> ir.Model:
        """The model as an object; raises InvalidModel or UsageError if it can't be read."""
        given = self._given
        if isinstance(given, ir.Model):
            return given
        if not isinstance(given, bytes):
            return ir.load(given, allow_external=self._allow_external)
        import onnx

        try:
            proto = onnx.ModelProto.FromString(given)
        except Exception as error:  # protobuf's DecodeError, which has no type annotations
            if (limit := exhausted(error)) is not None:
                raise ResourceLimit(f"{limit} to read the model", hint=MEMORY_HINT) from error
            raise InvalidModel("the bytes are not an ONNX model") from error
        folder = given.folder if isinstance(given, ModelInFolder) else None
        return ir.from_proto(proto, base_dir=folder)

    def close(self) -> None:
        """Remove temporary files."""
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    def _write(self, model: ir.Model) -> Source:
        """``model`` in memory, with references to its data files if it is large, or in a temporary file."""
        values = [value for graph in ir.graphs_of(model) for value in graph.initializers.values()]
        nbytes = sum(value.const_value.nbytes for value in values if value.const_value is not None)
        if nbytes < self._in_memory:
            return ir.to_bytes(model)
        found = beside_data(model, self._in_memory)
        self._kept = None if found is None else found[1]
        if found is not None:
            return found[0]
        self.folder = publish.ScratchFolder()
        path = self.folder.path / "model.onnx"
        ir.save(model, path, weights="beside" if nbytes >= MAPPED_BYTES else "inside")
        return path


def beside_data(model: ir.Model, limit: int) -> tuple[ModelInFolder, ir.KeptData] | None:
    """``model`` in memory with references to the data files that it was read from, and these files.

    ``None`` if it refers to no files, a file has changed, onnxruntime can't read the path of the folder, or
    the other tensors have more than ``limit`` bytes.
    """
    found = ir.to_bytes_beside_data(model, limit)
    if found is None or not _is_utf8(folder := os.fspath(found[1].folder)):
        return None
    content, kept = found
    return ModelInFolder(content, folder, sum(kept.nbytes.values()), kept.state), kept


def _is_utf8(path: str) -> bool:
    """Whether onnxruntime can read ``path``."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
