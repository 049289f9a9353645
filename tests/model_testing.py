"""Small builders that many tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Action, Context, Options
from graphopt.passes.pass_records import History
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry

#: Four heads of size 8 of rows q, k and v of [.., .., 32], with ``heads``, ``rows`` and ``scale`` as constants.
ATTENTION_STEPS = """
    a = Reshape(q, heads)
    b = Transpose <perm = [0, 2, 1, 3]>(a)
    c = Reshape(k, heads)
    d = Transpose <perm = [0, 2, 3, 1]>(c)
    e = Reshape(v, heads)
    f = Transpose <perm = [0, 2, 1, 3]>(e)
    s = MatMul(b, d)
    t = Mul(s, scale)
    p = Softmax <axis = -1>(t)
    w = MatMul(p, f)
    j = Transpose <perm = [0, 2, 1, 3]>(w)
    y = Reshape(j, rows)
"""


def parse(text: str, *, ir_version: int = 8, opset: int = 17, domains: str = "") -> ir.Model:
    """A model from ONNX text; a header is added to a bare graph."""
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
) -> tuple[History, Context]:
    """Run pipeline ``text`` over ``model`` in place."""
    cx = context_for(model, options, gate=gate, observers=observers)
    return Pipeline.parse(text, registry()).run(model, cx), cx


def agree(original: ir.Model, other: ir.Model, sizes: tuple[int, ...] = (2, 0, 1)) -> bool:
    """Whether both give the same bits, with onnxruntime's optimizations off, for a few generated inputs.

    Much quicker than ``graphopt.verify``. Dynamic dims have all ``sizes`` in turn (0 may crash operators);
    where the original does not run, nothing is asked of the other, but it has to run once.
    """
    sessions = [_session(model) for model in (original, other)]
    random, ran = np.random.default_rng(0), 0
    for size in sizes:
        feeds = {item.name: _fed(item, size, random) for item in sessions[0].get_inputs()}
        try:
            expected = sessions[0].run(None, feeds)
        except Exception:  # nodes that it can't run are not required to run
            continue
        ran += 1
        for one, two in zip(expected, sessions[1].run(None, feeds), strict=True):
            same = np.shape(one) == np.shape(two) and np.asarray(one).tobytes() == np.asarray(two).tobytes()
            if not same:
                return False
    return ran > 0


def _session(model: ir.Model) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(ir.to_bytes(model), options, providers=["CPUExecutionProvider"])


def _fed(item: Any, size: int, random: np.random.Generator) -> np.ndarray:
    shape = [dim if isinstance(dim, int) else size for dim in item.shape]
    numbers = np.asarray(2 * random.standard_normal(shape))
    match item.type:
        case "tensor(bool)":
            return np.asarray(numbers > -1)
        case "tensor(int64)":
            return np.asarray(np.floor(np.abs(numbers)), np.int64)
        case "tensor(int32)" | "tensor(int8)":
            return np.asarray(np.floor(3 * numbers)).astype(item.type[7:-1])
        case "tensor(uint8)":
            return np.asarray(128 + 40 * numbers).astype(np.uint8)
        case "tensor(float)":
            return numbers.astype(np.float32)
        case "tensor(float16)":
            return numbers.astype(np.float16)
        case "tensor(double)":
            return numbers
    raise NotImplementedError(f"inputs of type {item.type}")
