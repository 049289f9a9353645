"""Rooflines of injected profiles and peaks, and the operations of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from graphopt.ort.devices import CPU
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.kernel_profile import KernelProfile
from graphopt.timing.machine_peaks import Peak, Peaks
from graphopt.timing.measure_peaks import peaks_of
from graphopt.timing.roofline import Roofline, roofline
from graphopt.util.disk_store import Store

PEAKS = Peaks({"float": Peak.of([100e9, 50e9, 90e9]), "int8": Peak.of([400e9])}, Peak.of([10e9]))


def node_of(op: str, inputs: int, domain: str = "", **attributes: Any) -> ir.Node:
    """A node whose shapes only the profile has."""
    names = [f"i{number}" for number in range(inputs)]
    made = helper.make_node(op, names, ["y"], name="n", domain=domain, **attributes)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return next(iter(ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8)).graph))


def events(op: str, inputs: list[dict[str, list[int]]], output: dict[str, list[int]], us: int) -> list[Any]:
    """Two runs of one kernel; the first is ten times slower."""
    args = {"op_name": op, "input_type_shape": inputs, "output_type_shape": [output]}
    kernel = {"cat": "Node", "name": "n_kernel_time", "args": args}
    return [
        {"name": "model_run", "ts": 0, "dur": 10 * us},
        {**kernel, "ts": 0, "dur": 10 * us},
        {"name": "model_run", "ts": 20 * us, "dur": us},
        {**kernel, "ts": 20 * us, "dur": us},
    ]


def of(node: ir.Node, inputs: list[dict[str, list[int]]], output: dict[str, list[int]], us: int) -> Roofline:
    return roofline("m", events(node.op_type, inputs, output, us), {"n": node}, {"n": ("a",)}, PEAKS)


def f32(*dims: int) -> dict[str, list[int]]:
    return {"float": list(dims)}


@pytest.mark.parametrize(
    ("node", "inputs", "output", "flops"),
    [
        (node_of("MatMul", 2), [f32(2, 3, 4), f32(4, 5)], f32(2, 3, 5), 2 * 2 * 3 * 4 * 5),
        (node_of("Gemm", 2, transA=1), [f32(4, 3), f32(4, 5)], f32(3, 5), 2 * 3 * 4 * 5),
        (node_of("Conv", 2, group=2), [f32(1, 4, 8, 8), f32(6, 2, 3, 3)], f32(1, 6, 6, 6), 2 * 216 * 18),
        (
            node_of("MatMulNBits", 3, "com.microsoft", K=64, N=8, bits=4, block_size=32),
            [f32(2, 64), {"uint8": [8, 2, 16]}, f32(16)],
            f32(2, 8),
            2 * 2 * 64 * 8,
        ),
        (
            node_of("MultiHeadAttention", 3, "com.microsoft", num_heads=2),
            [f32(1, 3, 8), f32(1, 5, 8), f32(1, 5, 8)],
            f32(1, 3, 8),
            2 * (2 * 3 * 5 * 8),
        ),
        (
            node_of("Attention", 2, "com.microsoft", num_heads=2),
            [f32(1, 3, 8), f32(8, 24)],
            f32(1, 3, 8),
            2 * 3 * 8 * 24 + 2 * (2 * 3 * 3 * 8),
        ),
    ],
)
def test_operations_equal_those_computed_by_hand(
    node: ir.Node, inputs: list[dict[str, list[int]]], output: dict[str, list[int]], flops: int
) -> None:
    assert of(node, inputs, output, 10).kernels[0].flops == flops


def test_shares_relate_the_time_of_later_runs_to_the_peaks() -> None:
    found = of(node_of("MatMul", 2), [f32(100, 100), f32(100, 100)], f32(100, 100), 32)
    (kernel,) = found.kernels
    assert kernel.milliseconds == pytest.approx(0.032)
    assert (kernel.flops, kernel.bytes) == (2_000_000, 120_000)
    assert kernel.compute_share == pytest.approx(0.625)
    assert kernel.bandwidth_share == pytest.approx(0.375)
    assert (kernel.bound, kernel.is_far, found.far_share) == ("compute", False, 0.0)


def test_kernels_below_half_of_both_peaks_are_far() -> None:
    found = of(node_of("MatMul", 2), [f32(100, 100), f32(100, 100)], f32(100, 100), 80)
    assert (found.kernels[0].is_far, found.far_share, found.unknown_share) == (True, 1.0, 0.0)


def test_operations_of_other_domains_are_unknown() -> None:
    found = of(node_of("Group", 1, "elsewhere"), [f32(10)], f32(10), 8)
    (kernel,) = found.kernels
    assert (kernel.flops, kernel.bytes, kernel.compute_share, kernel.bound) == (None, 80, None, None)
    assert found.unknown_share == 1.0


def test_operations_are_unknown_if_the_profile_lacks_an_input() -> None:
    assert of(node_of("MatMul", 2), [f32(3, 4)], f32(3, 5), 8).kernels[0].flops is None


def test_constants_that_the_profile_lacks_have_the_shapes_of_the_graph() -> None:
    weight = onnx.numpy_helper.from_array(np.ones((4, 5), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="n")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    node = next(iter(ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8)).graph))
    (kernel,) = of(node, [f32(3, 4)], f32(3, 5), 8).kernels
    assert (kernel.flops, kernel.bytes) == (2 * 3 * 4 * 5, 4 * (12 + 20 + 15))


def test_lost_time_is_the_time_beyond_the_higher_roof() -> None:
    found = of(node_of("MatMul", 2), [f32(100, 100), f32(100, 100)], f32(100, 100), 80)
    (kernel,) = found.kernels
    assert kernel.compute_milliseconds == pytest.approx(0.020)
    assert (kernel.memory_milliseconds, kernel.roof_milliseconds) == (
        pytest.approx(0.012),
        pytest.approx(0.020),
    )
    assert kernel.lost_milliseconds == found.lost_milliseconds == pytest.approx(0.060)
    assert [one.name for one in found.far] == ["n"]


def test_kernels_in_caches_lose_no_time() -> None:
    (kernel,) = of(node_of("Relu", 1), [f32(10000)], f32(10000), 4).kernels
    assert (kernel.bound, kernel.lost_milliseconds, kernel.is_far) == ("memory", 0.0, False)


def test_times_are_those_of_the_fastest_run_besides_the_first() -> None:
    runs = events("Relu", [f32(10000)], f32(10000), 8)
    for index, us in enumerate((6, 30, 9)):
        moved = [{**event, "ts": 100 * (index + 1), "dur": us} for event in runs[2:4]]
        runs += moved
    (kernel,) = roofline("m", runs, {"n": node_of("Relu", 1)}, {}, PEAKS).kernels
    assert (kernel.milliseconds, kernel.typical_milliseconds) == (0.006, pytest.approx(0.0085))


def test_json_has_all_figures() -> None:
    found = of(node_of("MatMul", 2), [f32(100, 100), f32(100, 100)], f32(100, 100), 80).to_dict()
    assert {"far_share", "unknown_share", "lost_milliseconds", "operators", "peaks"} <= {*found}
    assert found["peaks"]["flops"]["float"] == {"rate": 100e9, "typical": 90e9, "low": 50e9, "repetitions": 3}
    (kernel,) = found["kernels"]
    assert {"originals", "flops", "bytes", "type", "compute_share", "bandwidth_share", "bound", "far"} <= {
        *kernel
    }


def group_body(*nodes: onnx.NodeProto) -> ir.Function:
    """A function of the domain of native groups with the inputs x and w and the output y."""
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("graphopt.native", "group", ["x", "w"], ["y"], [*nodes], opsets)
    x, w = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xw")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    call = helper.make_node("group", ["x", "w"], ["y"], name="n", domain="graphopt.native")
    graph = helper.make_graph([call], "g", [x, w], [y])
    imports = [*opsets, helper.make_opsetid("graphopt.native", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)
    return next(iter(ir.from_proto(model).functions.values()))


def test_operations_of_a_group_are_those_of_its_nodes_with_the_sizes_of_the_run() -> None:
    body = group_body(
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["y"], keepdims=0),
    )
    node = node_of("group", 2, "graphopt.native")
    profile = events("group", [f32(3, 1), f32(4)], f32(), 10)
    (kernel,) = roofline("m", profile, {"n": node}, {}, PEAKS, {"group": body}).kernels
    assert kernel.flops == 12 + 5 * 12 + 12
    assert kernel.bytes == 4 * (3 + 4 + 1)


def test_operations_of_a_group_with_an_operator_without_formula_are_unknown() -> None:
    body = group_body(helper.make_node("Einsum", ["x", "w"], ["y"], equation="ij,j->i"))
    node = node_of("group", 2, "graphopt.native")
    profile = events("group", [f32(3, 4), f32(4)], f32(3), 10)
    (kernel,) = roofline("m", profile, {"n": node}, {}, PEAKS, {"group": body}).kernels
    assert (kernel.flops, kernel.bytes) == (None, 4 * (12 + 4 + 3))


def test_a_peak_is_the_highest_rate_also_of_an_earlier_measurement() -> None:
    earlier = Peak.of([3.0, 5.0])
    assert Peak.of([2.0, 4.0, 1.0], earlier) == Peak(5.0, 2.0, 1.0, 3)
    assert Peak.of([2.0, 9.0, 1.0], earlier).rate == 9.0


def test_peaks_are_stored_for_each_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1.0, 2.0, 3.0, 2.5])
    requested: list[int | None] = []

    def probes(threads: int | None) -> dict[str, Any]:
        requested.append(threads)
        rate = next(rates)
        return {name: [lambda: rate] for name in ("float", "double", "int8", "copy")}

    monkeypatch.setattr("graphopt.timing.measure_peaks._probes", probes)
    store = Store(tmp_path)
    assert peaks_of(store, 1).bandwidth.rate == peaks_of(store, 1).bandwidth.rate == 1.0
    assert peaks_of(store, 2).of_type("float16") == 2.0
    assert peaks_of(store, 1, again=True).of_type("uint8") == 3.0
    assert peaks_of(store, 1, again=True).bandwidth.rate == 3.0
    assert requested == [1, 2, 1, 1]


_BRANCHES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[64,64] x, bool c) => (float[64,64] y) {
  m = MatMul(x, w)
  z = If (c) <
    then_branch = t () => (float[64,64] a) { a = Sin(m) },
    else_branch = e () => (float[64,64] b) { b = Exp(m) }
  >
  y = MatMul(z, x)
}"""


@pytest.mark.parametrize("external", [False, True])
def test_kernels_of_unnamed_nodes_are_known_beside_bodies(external: bool, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(_BRANCHES)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=external, location="m.data")
    feeds = {"x": np.ones((64, 64), np.float32), "c": np.array(True)}
    found = KernelProfile.of("m", path, ir.load(path), Setup(feeds, None, CPU, 1)).roofline(PEAKS)
    products = [kernel for kernel in found.kernels if kernel.op == "MatMul"]
    (sine,) = (kernel for kernel in found.kernels if kernel.op == "Sin")
    assert [kernel.flops for kernel in products] == [2 * 64**3] * 2 and sine.flops == 64**2
    assert all(kernel.originals for kernel in found.kernels)
    assert products[0].originals != products[1].originals
