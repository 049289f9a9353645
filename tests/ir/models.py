"""Small models for the tests of the IR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def floats(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    """Declares a float tensor."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))


def weight(name: str, *dims: int, seed: int = 0) -> onnx.TensorProto:
    """A float initializer drawn from ``seed``."""
    return numpy_helper.from_array(np.random.default_rng(seed).normal(size=dims).astype(np.float32), name)


def model(
    nodes: list[onnx.NodeProto],
    initializers: list[onnx.TensorProto] | None = None,
    *,
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    domains: tuple[str, ...] = (),
    opset: int = 17,
    ir_version: int = 8,
    functions: list[onnx.FunctionProto] | None = None,
    **fields: Any,
) -> onnx.ModelProto:
    """A model from ``x`` to ``y``, by default both float vectors."""
    graph = helper.make_graph(
        nodes, "g", inputs or [floats("x", "N", 4)], outputs or [floats("y", "N", 4)], initializers or []
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(
        graph, opset_imports=imports, ir_version=ir_version, functions=functions or [], **fields
    )


def chain(length: int) -> onnx.ModelProto:
    """A chain of ``length`` nodes."""
    names = ["x", *(f"/layer/{i}/Neg_output_0" for i in range(length - 1)), "y"]
    return model([helper.make_node("Neg", [names[i]], [names[i + 1]], f"n{i}") for i in range(length)])


def run(data: onnx.ModelProto | bytes | Path, **feeds: np.ndarray) -> list[np.ndarray]:
    """The outputs of onnxruntime with its own optimizations off."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if isinstance(data, onnx.ModelProto):
        data = data.SerializeToString()
    source = str(data) if isinstance(data, Path) else data
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def external(
    path: Path, tensors: dict[str, np.ndarray], *, location: str = "w.bin", write: bool = True
) -> None:
    """A model at ``path`` that sums ``tensors``, which are stored one after the other in ``location``."""
    nodes, protos, offset, data = [], [], 0, b""
    last = "x"
    for index, (name, array) in enumerate(tensors.items()):
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        proto.data_location = TensorProto.EXTERNAL
        places = {"location": location, "offset": offset, "length": array.nbytes}
        for key, value in places.items():
            proto.external_data.add(key=key, value=str(value))
        protos.append(proto)
        data, offset = data + array.tobytes(), offset + array.nbytes
        result = "y" if index == len(tensors) - 1 else f"sum_{index}"
        nodes.append(helper.make_node("Add", [last, name], [result]))
        last = result
    onnx.save(model(nodes, protos), path)
    if write:
        (path.parent / location).write_bytes(data)
