"""Small models for the tests of the runtime."""

from __future__ import annotations

import onnx
import onnx.parser

from graphopt import ir


def parse_proto(text: str, *, ir_version: int = 8, opset: int = 17, domains: str = "") -> onnx.ModelProto:
    """A model from ONNX text; a header is added to a bare graph."""
    if not text.lstrip().startswith("<"):
        text = f'<ir_version: {ir_version}, opset_import: ["" : {opset}{domains}]> {text}'
    return onnx.parser.parse_model(text)


def parse(text: str, *, ir_version: int = 8, opset: int = 17, domains: str = "") -> ir.Model:
    """As :func:`parse_proto`, in our own terms."""
    return ir.from_proto(parse_proto(text, ir_version=ir_version, opset=opset, domains=domains))


def data(text: str, *, ir_version: int = 8, opset: int = 17, domains: str = "") -> bytes:
    """As :func:`parse_proto`, serialized."""
    return parse_proto(text, ir_version=ir_version, opset=opset, domains=domains).SerializeToString()
