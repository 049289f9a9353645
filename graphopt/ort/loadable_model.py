"""A model as an object, and in a form that onnxruntime can load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property

from graphopt import ir, publish
from graphopt.errors import InvalidModel
from graphopt.ort.session import Source

#: Bytes of initializers beyond which a model is passed to onnxruntime as a file, which it maps.
_LARGE = 1 << 28


class Artifact:
    """A model in a form that onnxruntime can load, with the temporary files for it.

    Args:
        model: a model, its serialized form, or its path, in any file format.
        allow_external: folders outside the model's own that may contain external data.

    Attributes:
        folder: the temporary folder with ``model.onnx``, once a large model was written.
    """

    def __init__(
        self, model: ir.Model | Source, allow_external: Sequence[str | os.PathLike[str]] = ()
    ) -> None:
        if isinstance(model, (str, os.PathLike)) and not ir.codec_of(model).ort_reads:
            model = ir.load(model, allow_external=allow_external)
        self._given = model
        self._allow_external = allow_external
        self.folder: publish.ScratchFolder | None = None

    @cached_property
    def source(self) -> Source:
        """The source for onnxruntime; written on first access, as it may be large."""
        given = self._given
        return self._write(given) if isinstance(given, ir.Model) else given

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
            raise InvalidModel("the bytes are not an ONNX model") from error
        return ir.from_proto(proto)

    def close(self) -> None:
        """Remove temporary files."""
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    def _write(self, model: ir.Model) -> Source:
        values = [value for graph in ir.graphs_of(model) for value in graph.initializers.values()]
        if sum(value.const_value.nbytes for value in values if value.const_value is not None) < _LARGE:
            return ir.to_bytes(model)
        self.folder = publish.ScratchFolder()
        path = self.folder.path / "model.onnx"
        ir.save(model, path, external_data=True)
        return path
