"""A model in the forms that different readers want: ours, and onnxruntime's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property

from graphopt import ir, publish
from graphopt.errors import InvalidModel
from graphopt.ort.session import Source

#: Larger models are handed to onnxruntime as files, which it maps instead of copying.
_LARGE = 1 << 28


class Artifact:
    """A model in a form that onnxruntime can load, with what had to be written for it.

    Args:
        model: a model, or its serialized form, or its path, in any form that can be loaded.
        allow_external: folders outside the model's own that external data may lie in.
    """

    def __init__(
        self, model: ir.Model | Source, allow_external: Sequence[str | os.PathLike[str]] = ()
    ) -> None:
        if isinstance(model, (str, os.PathLike)) and not ir.codec_of(model).ort_reads:
            model = ir.load(model, allow_external=allow_external)
        self._given = model
        self._allow_external = allow_external
        self._folder: publish.ScratchFolder | None = None

    @cached_property
    def source(self) -> Source:
        """What onnxruntime loads; written when it is needed first, as it may be large."""
        given = self._given
        return self._write(given) if isinstance(given, ir.Model) else given

    def model(self) -> ir.Model:
        """The model as such; raises InvalidModel or UsageError if it can't be read."""
        given = self._given
        if isinstance(given, ir.Model):
            return given
        if not isinstance(given, bytes):
            return ir.load(given, allow_external=self._allow_external)
        import onnx

        try:
            proto = onnx.ModelProto.FromString(given)
        except Exception as error:  # protobuf's DecodeError, which has no types
            raise InvalidModel("the bytes are not an ONNX model") from error
        return ir.from_proto(proto)

    def close(self) -> None:
        """Remove what was written."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _write(self, model: ir.Model) -> Source:
        values = [value for graph in ir.graphs_of(model) for value in graph.initializers.values()]
        if sum(value.const_value.nbytes for value in values if value.const_value is not None) < _LARGE:
            return ir.to_bytes(model)
        self._folder = publish.ScratchFolder()
        path = self._folder.path / "model.onnx"
        ir.save(model, path, external_data=True)
        return path
