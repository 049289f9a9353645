"""explain --check compares the placement of a session with the prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphopt import api, ir
from graphopt.errors import UsageError
from graphopt.placement import NodePlacement, Prediction, compare_placement
from tests.model_testing import parse
from tests.placement import cuda_stand_in
from tests.placement.placed_models import placed_model


def test_a_session_places_nodes_as_predicted(libraries: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(placed_model("an LSTM with clipping"), path)
    arguments = ("explain", str(path), "--device", "cuda", "--pattern", "placement", "--check")
    lines = cuda_stand_in.run(libraries, "graphopt", *arguments).splitlines()
    assert lines[1:] == [
        "the placement of a session is as predicted",
        "on the CPU 1 × LSTM: cuDNN's LSTM does not support clip",
        "  at     LSTM LSTM(z)",
        "copied to the device 1 ×: LSTM runs on the CPU",
        "  at     z, computed by LSTM(z), read by Relu(y)",
        "copied to the host 1 ×: LSTM runs on the CPU",
        "  at     a, computed by Relu(a), read by LSTM(z)",
    ]
    told = json.loads(cuda_stand_in.run(libraries, "graphopt", *arguments, "--json"))
    assert told["placement"]["differences"] == []


def test_a_check_requires_a_device_with_its_own_memory() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="no placement to check"):
        api.explain(model, device="cpu", check=True)


class _Node:
    def __init__(self, name: str, op_type: str) -> None:
        self.name, self.op_type = name, op_type


class _Part:
    def __init__(self, ep_name: str, *nodes: _Node) -> None:
        self.ep_name, self._nodes = ep_name, nodes

    def get_nodes(self) -> tuple[_Node, ...]:
        return self._nodes


class _Session:
    def __init__(self, *parts: _Part) -> None:
        self._parts = parts

    def get_provider_graph_assignment_info(self) -> tuple[_Part, ...]:
        return self._parts


def _found(*, optimized: bool = False) -> list[str]:
    """Differences for two named nodes, one on the wrong side, and three unnamed ones, one too many on CUDA."""
    from graphopt.placement.prediction import Cause

    nodes = [
        NodePlacement("/a", "Relu", ""),
        NodePlacement("/b", "Clip", "", Cause.NO_TYPE, "…"),
        NodePlacement("Mul(c)", "Mul", ""),
        NodePlacement("Mul(d)", "Mul", "", Cause.SIZES, "…"),
        NodePlacement("Mul(e)", "Mul", "", Cause.SIZES, "…"),
    ]
    session = _Session(
        _Part("CUDAExecutionProvider", _Node("/a", "Relu"), _Node("/b", "Clip"), _Node("", "Mul")),
        _Part("CUDAExecutionProvider", _Node("", "Mul")),
        _Part("CPUExecutionProvider", _Node("", "Mul")),
    )
    return list(map(str, compare_placement(session, Prediction("1", tuple(nodes), ()), optimized=optimized)))


def test_differences_name_the_nodes() -> None:
    assert _found() == [
        "Clip /b: 1 of 1 predicted on the CPU, 0 of 1 found there",
        "Mul: 2 of 3 predicted on the CPU, 1 of 3 found there",
    ]


def test_only_named_nodes_of_optimized_graphs_are_compared() -> None:
    assert _found(optimized=True) == ["Clip /b: 1 of 1 predicted on the CPU, 0 of 1 found there"]
