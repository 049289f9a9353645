"""The graph that onnxruntime runs."""

from __future__ import annotations

import pytest

from graphopt.ort import session
from graphopt.ort.optimized_graph import optimized_graph
from tests.model_testing import parse

TEXT = "g (float[N] x) => (float[N] y) { s = Sigmoid(x) y = Mul(x, s) }"


def test_graph_of_a_model_is_written_by_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a session in this process")

    monkeypatch.setattr(session, "create", refuse)
    with optimized_graph(parse(TEXT)) as graph:
        assert [node.op_type for node in graph.graph] == ["QuickGelu"]
    with optimized_graph(parse(TEXT), optimizations="off") as graph:
        assert [node.op_type for node in graph.graph] == ["Sigmoid", "Mul"]
