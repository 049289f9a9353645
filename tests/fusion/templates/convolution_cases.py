"""Convolutions of random operands, in one model with an output for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper as h

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion import template_policy, template_table
from graphopt.ort import session
from tests.fusion.templates.built_models import Built, assert_special_values_agree, original_and_optimized


@dataclass(frozen=True)
class Case:
    """A convolution of random operands, followed by ``after``: nothing, or elementwise operators."""

    x: tuple[int, ...]
    weights: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    bias: bool = True
    after: str = ""


def conv(
    x: tuple[int, ...], weights: tuple[int, ...], after: str = "", bias: bool = True, **attributes: Any
) -> Case:
    return Case(x, weights, attributes, bias, after)


def model_of(op_type: str, cases: Sequence[Case], rng: np.random.Generator) -> onnx.ModelProto:
    """All cases as ``op_type``, each with an input ``xN`` and an output ``yN``; the batch is dynamic."""
    nodes, inputs, outputs, constants = [], [], [], []

    def constant(name: str, values: np.ndarray) -> str:
        constants.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
        return name

    for index, case in enumerate(cases):
        if op_type == "ConvTranspose":
            terms, filters = case.weights[0], case.weights[1] * case.attributes.get("group", 1)
        else:
            terms, filters = math.prod(case.weights[1:]), case.weights[0]
        names = [
            f"x{index}",
            constant(f"w{index}", rng.standard_normal(case.weights) / np.sqrt(terms)),
        ]
        if case.bias:
            names.append(constant(f"b{index}", rng.standard_normal(filters)))
        inputs.append(h.make_tensor_value_info(names[0], onnx.TensorProto.FLOAT, ["n", *case.x[1:]]))
        outputs.append(h.make_tensor_value_info(f"y{index}", onnx.TensorProto.FLOAT, None))
        result = f"c{index}" if case.after else f"y{index}"
        nodes.append(h.make_node(op_type, names, [result], name=f"conv{index}", **case.attributes))
        if case.after == "relu":
            nodes.append(h.make_node("Relu", [result], [f"y{index}"]))
        if case.after == "silu":
            nodes.append(h.make_node("Sigmoid", [result], [f"s{index}"]))
            nodes.append(h.make_node("Mul", [result, f"s{index}"], [f"y{index}"]))
        if case.after == "add":
            values = rng.standard_normal((filters, *[1] * (len(case.weights) - 2)))
            nodes.append(h.make_node("Add", [result, constant(f"a{index}", values)], [f"y{index}"]))
    graph = h.make_graph(nodes, "convolutions", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def model_of_any_width(
    op_type: str, weights: tuple[int, ...], attributes: dict[str, Any] | None = None
) -> onnx.ModelProto:
    """One convolution of ``x``, float[1, channels, width], with weights of ones."""
    channels = weights[1 if op_type == "Conv" else 0]
    graph = h.make_graph(
        [h.make_node(op_type, ["x", "w"], ["y"], **(attributes or {}))],
        "any_width",
        [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, channels, "width"])],
        [h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones(weights, np.float32), "w")],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def feeds_of(cases: Sequence[Case], batch: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"x{index}": rng.standard_normal((batch, *case.x[1:]), dtype=np.float32)
        for index, case in enumerate(cases)
    }


def with_epilogue(case: Case, y: np.ndarray, tensors: dict[str, np.ndarray], index: int) -> np.ndarray:
    """A result in double precision, after the bias and the elementwise operators."""
    shape = (1, -1, *[1] * (y.ndim - 2))
    if case.bias:
        y = y + tensors[f"b{index}"].reshape(shape)
    if case.after == "add":
        y = y + tensors[f"a{index}"].reshape(shape)
    if case.after == "relu":
        y = np.maximum(y, 0)
    return y / (1 + np.exp(-y)) if case.after == "silu" else y


def results_of_special_values(
    built: Built, cases: Sequence[Case]
) -> Iterator[tuple[Case, np.ndarray, np.ndarray]]:
    """The results with and without kernels, whose NaN and infinities agree, of inputs with one of these."""
    original, running = original_and_optimized(built)
    for seed, value in enumerate((np.nan, np.inf, -np.inf)):
        feeds = feeds_of(cases, 2, seed)
        rng = np.random.default_rng(seed)
        for array in feeds.values():
            array.flat[rng.integers(array.size)] = value
        found, expected = session.run(running, feeds), session.run(original, feeds)
        for case, one, two in zip(cases, found, expected, strict=True):
            assert_special_values_agree(one, two, case)
            yield case, one, two


def is_faster_as_template(model: ir.Model, node: ir.Node) -> bool:
    with context_for(model) as cx:
        (match,) = template_table.matches(node, cx)
        return template_policy.is_faster_as_template(match, cx)
