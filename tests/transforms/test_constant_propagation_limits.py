"""Folding does not enlarge a model beyond the limit, for any number of results and of runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import pytest

import graphopt
from graphopt import ir
from graphopt.context import context_for
from graphopt.transforms.scalar.constant_propagation import ConstantPropagation
from tests.model_testing import agree, ops, parse, run_pipeline

KIB = 1024


def ranges(counts: dict[int, int], weights: int) -> ir.Model:
    """Ranges, ``counts`` by their size in bytes, each added to numbers, and ``weights`` bytes of other weights."""
    arrays = {"w": np.ones((max(weights // 1024, 1), 256), np.float32), "one": np.float32(1)}
    nodes, results = [oh.make_node("MatMul", ["w", "x"], ["used"])], ["used"]
    for each, count in counts.items():
        for i in range(count):
            arrays[f"from_{each}_{i}"] = np.float32(i)
            arrays[f"to_{each}_{i}"] = np.float32(i + each // 4)
            nodes.append(
                oh.make_node("Range", [f"from_{each}_{i}", f"to_{each}_{i}", "one"], [f"r_{each}_{i}"])
            )
            nodes.append(oh.make_node("Add", [f"r_{each}_{i}", "n"], [f"s_{each}_{i}"]))
            results.append(f"s_{each}_{i}")
    graph = oh.make_graph(
        nodes,
        "ranges",
        [
            oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [256]),
            oh.make_tensor_value_info("n", onnx.TensorProto.FLOAT, []),
        ],
        [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8))


def size(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)


@pytest.mark.parametrize(
    ("counts", "weights", "left"),
    [
        ({16 * KIB: 4}, 0, 0),
        ({16 * KIB: 5}, 0, 5),  # more than the limit, 64 KiB
        ({16 * KIB: 5}, 512 * KIB, 0),  # not more than a quarter of the weights
        ({16 * KIB: 5, 1 * KIB: 20}, 0, 5),  # small ones are another matter
        ({128 * KIB: 1}, 1024 * KIB, 1),  # one alone is above the limit
    ],
)
def test_results_of_equal_size_share_the_limit_or_a_quarter_of_the_weights(
    counts: dict[int, int], weights: int, left: int
) -> None:
    model = ranges(counts, weights)
    for _ in range(3):
        ConstantPropagation().run(model, context_for(model))
        assert ops(model).count("Range") == left


def test_folded_weights_do_not_raise_the_limit() -> None:
    model = ranges({16 * KIB: 16, 32 * KIB: 9}, 1024 * KIB)
    ConstantPropagation().run(model, context_for(model))
    assert ops(model).count("Range") == 9
    ConstantPropagation().run(model, context_for(model))
    assert ops(model).count("Range") == 9


@pytest.mark.parametrize(("limit", "left"), [(None, 0), (64 * KIB, 0), (32 * KIB, 4)])
def test_fold_limit_bounds_the_sum_of_results_of_one_size(limit: int | None, left: int) -> None:
    model, _ = graphopt.optimize(ranges({16 * KIB: 4}, 0), fold_limit=limit, verify=False)
    assert ops(model).count("Range") == left


def test_a_tensor_of_one_number_stays_declared() -> None:
    model = parse(
        """g (float[K, 64] x, float[8] v) => (float[K, 32] z, float[8] u) <float half = {0.5}> {
            s = Constant <value_ints = [64, 64]> ()
            w = ConstantOfShape <value = float[1] {2}> (s)
            y = MatMul(x, w)
            t = Constant <value_ints = [64, 32]> ()
            e = Expand(half, t)
            f = Neg(e)
            z = MatMul(y, f)
            k = Constant <value_ints = [8]> ()
            tiny = ConstantOfShape <value = float[1] {3}> (k)
            u = Mul(v, tiny)
        }"""
    )
    before = ir.from_proto(ir.to_proto(model))
    run_pipeline(model, "fixpoint(constant-propagation,constant-pooling,dce)")
    assert ops(model).count("ConstantOfShape") == 2
    assert "Expand" not in ops(model)
    assert "Neg" not in ops(model)
    assert size(model) < 256
    assert agree(before, model)


def test_length_of_scan_does_not_depend_on_its_state() -> None:
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


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_result_of_another_shape_than_inferred_is_not_folded(keepdims: int) -> None:
    """onnxruntime does not reduce the shape of an empty tensor over axes that count from the end."""
    model = parse(
        "g (float[N] x) => (float[N] y, int64[P, Q] c) <int64[1, 0] e = {}, int64[2] axes = {-2, -1}> {"
        f" s = ReduceSum <keepdims = {keepdims}> (e, axes) c = Clip(s) y = Neg(x) }}"
    )
    run_pipeline(model, "constant-propagation")
    assert ops(model) == ["ReduceSum", "Clip", "Neg"]
