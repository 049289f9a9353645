"""Folding does not grow a model by more than it may, however many results there are, and however often it runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import pytest

from graphopt import ir
from graphopt.driver import context_for
from graphopt.passes.constant_propagation import ConstantPropagation
from tests.support import ops, parse, run_pipeline

KIB = 1024


def expands(count: int, each: int, weights: int) -> ir.Model:
    """``count`` Expands of a number to ``each`` bytes, all added to x, beside ``weights`` bytes that stay."""
    arrays = {"w": np.zeros((weights // each, each // 4), np.float32), "shape": np.array([each // 4])}
    nodes, last = [oh.make_node("MatMul", ["w", "x"], ["used"])], "x"
    for i in range(count):
        arrays[f"c_{i}"] = np.float32(i)
        nodes.append(oh.make_node("Expand", [f"c_{i}", "shape"], [f"e_{i}"]))
        nodes.append(oh.make_node("Add", [last, f"e_{i}"], [last := f"s_{i}"]))
    graph = oh.make_graph(
        nodes,
        "expands",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [each // 4])],
        [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("used", last)],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8))


def size(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)


@pytest.mark.parametrize(("weights", "most"), [(0, 64 * KIB), (256 * KIB, 64 * KIB), (1024 * KIB, 256 * KIB)])
def test_all_results_together_keep_to_the_limit_or_a_quarter_of_the_weights(weights: int, most: int) -> None:
    model = expands(count=100, each=16 * KIB, weights=weights)
    before, cx = size(model), context_for(model)
    for _ in range(4):
        ConstantPropagation().run(model, cx)
    grown = size(model) - before
    assert most // 2 < grown <= most + KIB  # which counts the weights, and what they are read with
    assert most // 2 < cx.grown <= most + KIB


def test_a_scan_takes_as_many_steps_as_what_it_scans_is_long_however_wide_its_state_is() -> None:
    model = parse(
        """g () => (float[W] y) {
            s = Constant <value_ints = [5000]> ()
            z = ConstantOfShape(s)
            t = Constant <value = float[3] {1, 2, 3}> ()
            y = Scan <num_scan_inputs = 1, body = b (float[W] p, float q) => (float[W] r) { r = Add(p, q) }> (z, t)
        }"""
    )
    run_pipeline(model, "constant-propagation")
    assert "Scan" not in ops(model)
