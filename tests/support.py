"""Small builders that many tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx.parser

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Action, Context, Options
from graphopt.passes.pipeline import Pipeline, Report
from graphopt.pipelines import registry


def parse(text: str, *, ir_version: int = 8, opset: int = 17, domains: str = "") -> ir.Model:
    """A model from ONNX text; a header is put in front of a bare graph."""
    if not text.lstrip().startswith("<"):
        text = f'<ir_version: {ir_version}, opset_import: ["" : {opset}{domains}]> {text}'
    return ir.from_proto(onnx.parser.parse_model(text))


def ops(model: ir.Model) -> list[str]:
    """Operators of the main graph, in order."""
    return [node.op_type for node in model.graph]


def run_pipeline(
    model: ir.Model,
    text: str,
    options: Options | None = None,
    gate: Callable[[Action], bool] | None = None,
    observers: tuple[Any, ...] = (),
) -> tuple[Report, Context]:
    """Run pipeline ``text`` over ``model`` in place."""
    cx = context_for(model, options, gate=gate, observers=observers)
    return Pipeline.parse(text, registry()).run(model, cx), cx
