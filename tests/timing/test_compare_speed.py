"""The harness on equal models and on a slower one; no absolute time is asserted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt.errors import RuntimeFailure
from graphopt.ort.session import create
from graphopt.timing.alternating_runs import (
    RaceLimits,
    Setup,
    known_feeds,
    output_shapes,
    race,
    round_ratios,
)
from graphopt.timing.compare_speed import compare_speed
from graphopt.timing.footprint import footprint, read_profile

FEEDS = {"x": np.ones((32, 128), np.float32)}
LIMITS = RaceLimits(rounds=10, processes=5, warmup=2, seconds=60)


def products(path: Path, count: int) -> Path:
    """A model of ``count`` products with the identity matrix, which change nothing."""
    make = onnx.helper
    names = ["x", *(f"t{index}" for index in range(count - 1)), "y"]
    nodes = [make.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    ends = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 128]) for name in ("x", "y")]
    eye = onnx.numpy_helper.from_array(np.eye(128, dtype=np.float32), "w")
    graph = make.make_graph(nodes, "products", ends[:1], ends[1:], [eye])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return products(tmp_path_factory.mktemp("quick") / "quick.onnx", 2)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return products(tmp_path_factory.mktemp("slow") / "slow.onnx", 22)


def test_twenty_redundant_products_are_slower(quick: Path, slow: Path) -> None:
    seen: list[float] = []
    timing = compare_speed({"quick": quick, "slow": slow}, Setup(FEEDS, threads=1), LIMITS, seen.append)
    told = timing.speeds["slow"].comparison
    assert told is not None and told.conclusion == "slower" and told.ratio > timing.band.high
    assert timing.processes == len(timing.speeds["slow"].ratios) == len(seen) == 5
    assert timing.speeds["quick"].comparison is None
    assert timing.speeds["slow"].p50 <= timing.speeds["slow"].p90 <= timing.speeds["slow"].p99


def test_the_same_model_is_no_different(quick: Path) -> None:
    # one measurement in a hundred may be a false claim; three in a row are not due to chance
    for _ in range(3):
        told = compare_speed({"a": quick, "b": quick}, Setup(FEEDS, threads=1), LIMITS).speeds["b"].comparison
        assert told is not None
        if told.conclusion == "no difference":
            return
    pytest.fail(f"the same model is said to be {told}")


def test_all_models_have_a_turn_in_every_round(quick: Path, slow: Path) -> None:
    times = race({"a": quick, "b": slow}, Setup(FEEDS, threads=1), RaceLimits(rounds=4, warmup=1), 0)
    assert [len(times[name]) for name in ("a", "b")] == [4, 4]
    assert len({len(turn) for turns in times.values() for turn in turns}) == 1  # equally many runs


def test_an_interruption_within_a_turn_does_not_count() -> None:
    times = {"a": [[1.0, 9.0, 1.0], [2.0, 2.0, 2.0]], "b": [[5.0, 8.0, 2.0], [1.0, 7.0, 7.0]]}
    assert round_ratios(times, "b", "a") == [2.0, 0.5]


def test_the_time_limit_ends_rounds_and_processes(quick: Path) -> None:
    timing = compare_speed({"a": quick}, Setup(FEEDS, threads=1), RaceLimits(rounds=10_000, seconds=0.01))
    assert timing.processes == 1 and timing.rounds < 10_000


def test_a_model_with_other_inputs_is_refused(quick: Path) -> None:
    with pytest.raises(RuntimeFailure, match="has an additional input, 'x'"):
        known_feeds(create(quick.read_bytes()), {"z": FEEDS["x"]})


def test_a_footprint_has_costs_placement_and_outputs(slow: Path) -> None:
    found = footprint(slow, Setup(FEEDS, threads=1), processes=1)
    assert found.session_seconds > 0 and found.peak_bytes > 0
    assert found.placement.nodes == {"CPU": 22} and found.placement.copies == 0
    (hot,) = found.placement.hot
    assert (hot.op, hot.provider, hot.nodes, hot.share) == ("MatMul", "CPU", 22, 1.0)
    np.testing.assert_array_equal(found.outputs[0], FEEDS["x"])


def test_a_profile_is_summed_by_operator_without_the_first_run() -> None:
    def node(op: str, ts: int, dur: int, provider: str = "CUDAExecutionProvider") -> dict[str, object]:
        args = {"op_name": op, "provider": provider}
        return {"cat": "Node", "name": f"{op}_1_kernel_time", "ts": ts, "dur": dur, "args": args}

    events = [
        {"cat": "Session", "name": "model_run", "ts": 0, "dur": 100},
        node("MatMul", 1, 9000),
        {"cat": "Session", "name": "model_run", "ts": 200, "dur": 100},
        {"cat": "Node", "name": "MatMul_1_fence_before", "ts": 201, "dur": 5000, "args": {}},
        node("MemcpyFromHost", 202, 10),
        node("MatMul", 210, 30),
        node("MatMul", 240, 30),
        node("Gather", 280, 30, "CPUExecutionProvider"),
    ]
    placement = read_profile(events, {"CPU": 1, "CUDA": 2})
    assert placement.kernels == {"CUDA": 3, "CPU": 1} and placement.copies == 1
    assert [(hot.op, hot.nodes, hot.milliseconds, hot.share) for hot in placement.hot] == [
        ("MatMul", 2, 0.06, 0.6),
        ("Gather", 1, 0.03, 0.3),
        ("MemcpyFromHost", 1, 0.01, 0.1),
    ]


def test_only_plain_tensors_have_buffers() -> None:
    assert output_shapes([np.zeros((2, 3), np.int64)]) == (((2, 3), "int64"),)
    assert output_shapes([np.zeros(2), ["a"]]) is None
    assert output_shapes([np.array(["a"], object)]) is None


def test_profiled_runs_do_not_use_cuda_graphs() -> None:
    setup = Setup({}, provider_options={"enable_cuda_graph": "1", "use_tf32": "1"})
    assert setup.eager(use_tf32="0").provider_options == {"use_tf32": "0"}
    assert setup.eager().provider_options == {"use_tf32": "1"}
