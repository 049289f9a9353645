"""Pages of ``graphopt report`` for small models of several kinds."""

from __future__ import annotations

import onnx

from graphopt.compiler.environment import Environment
from graphopt.compiler.page_source import page_source
from graphopt.page.render import page_of
from zoo import SAMPLES

#: A convolutional network; an encoder with scopes; Loop and If with bodies; quantized; and functions.
MODELS = ("cnn", "transformer", "control_flow", "quantized", "functions")


def report_page(name: str) -> bytes:
    """The page of the optimization of a sample."""
    return optimization_page(name, SAMPLES[name].build())


def optimization_page(name: str, model: onnx.ModelProto) -> bytes:
    """The page of the optimization of ``model``."""
    command = ("graphopt", "report", f"{name}.onnx")
    return page_of(page_source(Environment(), model, labels=(f"{name}.onnx", "result"), command=command))
