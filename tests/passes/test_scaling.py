"""The work of pipelines is linear in the size of the model, and deterministic."""

from __future__ import annotations

import sys
from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from tests.model_testing import parse, run_pipeline


def _chain(length: int) -> ir.Model:
    nodes = [helper.make_node("Relu" if i % 3 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("v0", f"v{length}")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def _hub(length: int) -> ir.Model:
    """One value with many readers, each behind an Identity."""
    nodes = [helper.make_node("Relu", ["x"], ["r"])]
    nodes += [helper.make_node("Identity", ["r"], [f"i{k}"]) for k in range(length)]
    nodes += [helper.make_node("LeakyRelu", [f"i{k}"], [f"e{k}"], alpha=k / length) for k in range(length)]
    return _model([*nodes, helper.make_node("Sum", [f"e{k}" for k in range(length)], ["y"])])


def _concats(length: int) -> ir.Model:
    """Each Concat appends to the preceding one."""
    names = ["x", *(f"c{k}" for k in range(length))]
    nodes = [helper.make_node("Concat", [names[k], "x"], [names[k + 1]], axis=0) for k in range(length)]
    return _model([*nodes, helper.make_node("Relu", [names[-1]], ["y"])])


def _old_weights(length: int) -> ir.Model:
    """Below IR version 4 every weight is an input too."""
    names = ["x", *(f"c{k}" for k in range(length - 1)), "y"]
    nodes = [
        helper.make_node("Mul" if k % 2 else "Sub", [names[k], f"w{k}"], [names[k + 1]])
        for k in range(length)
    ]
    weights = [helper.make_tensor(f"w{k}", TensorProto.FLOAT, [1], [k + 0.5]) for k in range(length)]
    return _model(nodes, weights, ir_version=3)


def _model(
    nodes: list[onnx.NodeProto], weights: list[TensorProto] | None = None, ir_version: int = 8
) -> ir.Model:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    listed = [helper.make_tensor_value_info(w.name, TensorProto.FLOAT, [1]) for w in weights or ()]
    graph = helper.make_graph(nodes, "g", [x, *listed], [y], weights or [])
    return ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    )


def test_a_chain_of_10_000_nodes_compiles() -> None:
    model = _chain(10_000)
    run_pipeline(model, "O2")
    assert 3_000 < len(model.graph) <= 10_000


def test_match_attempts_grow_linearly() -> None:
    attempts = []
    for length in (1_000, 5_000):
        _, cx = run_pipeline(_chain(length), "peephole")
        attempts.append(cx.attempts)
    assert attempts[1] <= 5.5 * attempts[0]


def test_two_runs_give_the_same_bytes() -> None:
    def build() -> bytes:
        model = parse(
            """g (float[N] x) => (float[N] y) <float[1] p = {1.5}, float[1] q = {1.5}> {
                a = Add(x, p) b = Add(x, q) c = Mul(a, b) y = Identity(c)
            }"""
        )
        run_pipeline(model, "O2")
        return ir.to_bytes(model)

    assert build() == build()


@pytest.mark.parametrize("build", [_hub, _concats, _old_weights])
def test_work_grows_linearly(build: Callable[[int], ir.Model]) -> None:
    def calls(length: int) -> int:
        model, count = build(length), 0

        def watch(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(watch)
        try:
            run_pipeline(model, "O2")
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # imports and caches
    assert calls(800) < 4.6 * calls(200)
