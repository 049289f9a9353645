"""Round the intermediate results of a model differently, to measure how its outputs depend on rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx.helper
import onnx.shape_inference

from graphopt.ops import traits

#: Two units in the last place, relative to the number, by types for which onnxruntime draws random numbers.
_UNITS: dict[int, float] = {onnx.TensorProto.FLOAT: 2.0**-22, onnx.TensorProto.DOUBLE: 2.0**-51}
#: Operators with bodies, and operators that compute no new numbers.
_KEPT = frozenset({"If", "Loop", "Scan", "SequenceMap", "Constant", "DequantizeLinear", "Range"})


def with_inner_rounding(model: bytes) -> bytes:
    """A serialized model with the perturbations of :func:`perturb_rounding`."""
    proto = onnx.ModelProto.FromString(model)
    perturb_rounding(proto)
    return proto.SerializeToString()


def perturb_rounding(proto: onnx.ModelProto) -> int:
    """Perturb all rounded floats of ``proto`` by up to two units in the last place, in place.

    The result of each such operator, also in bodies, is multiplied element-wise by random numbers next to 1.
    Runs draw different numbers, and every session draws the same sequence. InstanceNormalization is expanded,
    because onnxruntime rounds x * scale / std and mean * scale / std, which cancel if x is constant.

    Returns:
        The number of perturbed results.
    """
    if not {"", "ai.onnx"} & {opset.domain for opset in proto.opset_import}:
        return 0
    types = dict(_types(onnx.shape_inference.infer_shapes(proto).graph))
    return _perturb(proto.graph, types, 0)


def _perturb(graph: onnx.GraphProto, types: dict[str, int], count: int) -> int:
    """Perturb the results in ``graph`` and its bodies; returns ``count`` plus the number of results."""
    nodes: list[onnx.NodeProto] = []
    for node in [step for whole in graph.node for step in _expanded(whole, types)]:
        for body in _bodies(node):
            count = _perturb(body, types, count)
        added = []
        if node.op_type not in _KEPT and (node.domain != "" or node.op_type not in traits.UNROUNDED):
            for index, name in enumerate(node.output):
                unit = _UNITS.get(types.get(name, onnx.TensorProto.UNDEFINED))
                if not name or unit is None:
                    continue
                count += 1
                plain, noise = f"{name}.graphopt.plain", f"{name}.graphopt.noise"
                node.output[index] = plain
                added += [
                    onnx.helper.make_node(
                        "RandomUniformLike",
                        [plain],
                        [noise],
                        low=1 - unit,
                        high=1 + unit,
                        seed=float(count),
                    ),
                    onnx.helper.make_node("Mul", [plain, noise], [name]),
                ]
        nodes += [node, *added]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return count


def _expanded(node: onnx.NodeProto, types: dict[str, int]) -> list[onnx.NodeProto]:
    """The steps of an InstanceNormalization of float32, with their ``types``; other nodes are unchanged."""
    if node.domain or node.op_type != "InstanceNormalization":
        return [node]
    dtype = types.get(node.output[0])
    if dtype != onnx.TensorProto.FLOAT:
        return [node]
    x, scale, bias = node.input
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    number = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [], [epsilon])

    def step(op_type: str, *operands: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{node.output[0]}.graphopt.{len(steps)}"
        steps.append(onnx.helper.make_node(op_type, operands, [name], **attributes))
        types[name] = dtype
        return name

    steps: list[onnx.NodeProto] = []
    centered = step("Sub", x, step("GlobalAveragePool", x))
    variance = step("GlobalAveragePool", step("Mul", centered, centered))
    deviation = step("Sqrt", step("Add", variance, step("Constant", value=number)))
    zero = step("Sub", scale, scale)
    normal = step("Div", centered, deviation)
    step("BatchNormalization", normal, scale, bias, zero, step("Exp", zero), name=node.output[0], epsilon=0.0)
    return steps


def _types(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """The known element types of the tensors in ``graph`` and its bodies, by name."""
    for info in (*graph.value_info, *graph.output):
        yield info.name, info.type.tensor_type.elem_type
    for node in graph.node:
        for body in _bodies(node):
            yield from _types(body)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):  # reading an absent field would create it
            yield attribute.g
        yield from attribute.graphs
