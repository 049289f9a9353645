"""Random graphs whose kernels run as device code: other nodes run in onnxruntime, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphopt import ir
from graphopt.errors import RuntimeFailure
from graphopt.fusion.loops.ir import Kernel
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort import session
from tests.fusion.backends.cuda.grid_interpreter import GridInterpreter
from tests.fusion.backends.cuda.launches import Device, run_on
from tests.fusion.backends.cuda.opencl import OpenCL
from tests.fuzz.kernels.all_groups import grouped
from tests.fuzz.kernels.batches import (
    Findings,
    graphs_of_operators,
    judge,
    sessions_without,
    with_missing_kernels,
)
from tests.fuzz.kernels.random_graphs import RandomGraph, generate

Arrays = dict[str, np.ndarray]


def examine(seeds: Sequence[int], folder: Path, opencl: bool) -> Findings:
    """Run the kernels of the graphs of ``seeds``, and compare.

    Args:
        folder: for sources and libraries.
        opencl: whether OpenCL runs them, or else the grid interpreter.
    """
    return _examine({f"seed {seed}": generate(seed) for seed in seeds}, folder, opencl)


def examine_operators(folder: Path, opencl: bool, few: int | None = None) -> Findings:
    """The same for graphs of one operator each; a missing kernel is also a fault.

    Args:
        few: number of graphs of each operator; by default all.
    """
    return with_missing_kernels(_examine(graphs_of_operators(few), folder, opencl))


def _examine(graphs: Mapping[str, RandomGraph], folder: Path, opencl: bool) -> Findings:
    groups = {name: grouped(graph.model) for name, graph in graphs.items()}
    kernels = {kernel.name: kernel for group in groups.values() for kernel in group.kernels}
    device = OpenCL(list(kernels.values())) if opencl else GridInterpreter(list(kernels.values()), folder)
    findings = Findings()
    for name, graph in graphs.items():
        group = groups[name]
        if not group.kernels:
            findings.without[name] = "; ".join(group.reasons.values())
            continue
        model = onnx.load_from_string(ir.to_bytes(group.model))
        findings.nodes += len(graph.grower.nodes)
        findings.left += sum(node.domain == "" for node in model.graph.node)
        without = sessions_without(graph)
        try:
            judge(name, graph, without, partial(run_model, model, kernels, device), findings)
        except RuntimeFailure as failure:
            if without:
                findings.faults.append(f"{name}: {failure}")
        except AssertionError as fault:
            findings.faults.append(f"{name}: {fault}")
    return findings


def run_model(
    model: onnx.ModelProto, kernels: Mapping[str, Kernel], device: Device, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The outputs of ``model``."""
    values: Arrays = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    values |= feeds
    for node in model.graph.node:
        inputs = [values[name] for name in node.input if name]
        if node.domain == NATIVE_DOMAIN:
            results, _ = run_on(device, kernels[node.op_type], inputs)
        else:
            results = _run_node(model, node, inputs)
        values |= zip(node.output, results, strict=True)
    return [values[item.name] for item in model.graph.output]


def _run_node(model: onnx.ModelProto, node: onnx.NodeProto, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a node in onnxruntime."""
    names = [name for name in node.input if name]
    feeds = dict(zip(names, inputs, strict=True))
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return [
        np.asarray(out) for out in session.run(session.create(single.SerializeToString(), threads=1), feeds)
    ]
