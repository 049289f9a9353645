"""The graphs that operations log, which parse again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt import config, ir
from graphopt.errors import UnsupportedModel, UsageError
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.instrument.graph_text import graph_text
from graphopt.ir.io import codecs
from graphopt.specialization.build_variants import Specialization
from tests.instrument.graph_dumps import STATIC, TEXT, X, graphs
from tests.model_testing import parse


def _vjp(model: ir.Model) -> None:
    executor = graphopt.compile(model, ExecutorOptions(depth=0), verify=False)
    _, pullback = executor.vjp(X, ["x"])
    pullback({"loss": np.ones((), np.float32)})


def _executor(model: ir.Model) -> None:
    executor = graphopt.compile(model, ExecutorOptions(pipelines="jit", wait=None), verify=False)
    executor.run(X)
    executor.run(X)


def _preset(model: ir.Model) -> None:
    executor = graphopt.compile(model, ExecutorOptions(wait=None), verify=False)
    executor.run(X)
    executor.run(X)


def _profile(model: ir.Model) -> graphopt.Profile:
    return graphopt.record_profile(model, [X], watch="all")


@pytest.mark.parametrize(
    ("operation", "titles"),
    [
        (lambda model: graphopt.optimize(model, verify=False), ["Optimized graph"]),
        (_executor, ["Profiled graph", STATIC]),
        (_preset, ["Optimized graph (general)", STATIC]),
        (_vjp, ["Forward graph", "Backward graph", "Optimized graph (general)", "Optimized graph (general)"]),
        (lambda model: graphopt.differentiate(model, "loss"), ["Optimized graph"]),
        (lambda model: graphopt.differentiate(model, "loss", fuser="builtin"), ["Optimized graph"]),
        (lambda model: graphopt.split(model, "loss"), ["Forward graph", "Backward graph"]),
        (lambda model: graphopt.value_and_grad(model, "loss"), ["Optimized graph"]),
        (lambda model: graphopt.train_step(model, "loss", "sgd"), ["Optimized graph"]),
        (lambda model: graphopt.with_groups(graphopt.partition(model), verify=False), ["Optimized graph"]),
        (
            lambda model: graphopt.bailout(model, "found", verify=False),
            ["Optimized graph (prefix)", "Optimized graph (rest)"],
        ),
        (
            lambda model: graphopt.with_bailouts(model, _profile(model), verify=False),
            ["Profiled graph", "Optimized graph"],
        ),
        (
            lambda model: graphopt.api.specialize(
                model, Specialization(_profile(model)), bundle=True, verify=False
            ),
            ["Optimized graph", "Optimized graph (x: f32[3, 2])"],
        ),
    ],
)
def test_graphs_of_operations(
    operation: Callable[[ir.Model], object], titles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with config.patch(log="graphs"):
        operation(parse(TEXT))
    found = graphs(capsys.readouterr().err)
    assert [title for title, _ in found] == titles


def test_each_name_selects_its_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(log="backward-graph:profiled-graph"):
        graphopt.split(parse(TEXT), "loss")
        _executor(parse(TEXT))
    assert [title for title, _ in graphs(capsys.readouterr().err)] == ["Backward graph", "Profiled graph"]


def test_dumped_graphs_compute_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(log="graphs"):
        _executor(parse(TEXT))
    expected = graphopt.run(parse(TEXT), X)
    for _, model in graphs(capsys.readouterr().err):
        for name, value in graphopt.run(model, X).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6)


def test_passes_of_all_operations_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with config.patch(log="fuse-builtin"):
        _preset(parse(TEXT))
    assert capsys.readouterr().err.count("before ") == 2


def test_large_initializers_are_inputs() -> None:
    text = graph_text(_with_weights())
    back = ir.from_proto(onnx.parser.parse_model(text))
    assert [value.name for value in back.graph.inputs] == ["x", "w"]
    assert list(back.graph.initializers) == ["v"]


def _with_weights() -> ir.Model:
    ones = ", ".join(["1"] * 400)
    return parse(
        f"g (float[20] x) => (float[20, 20] y, float[20] z) <float[20, 20] w = {{{ones}}}, float[20] v = {{{ones[:58]}}}>"
        "{ y = Mul(x, w) z = Add(x, v) }"
    )


def test_models_without_onnx_text_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: ir.Model, inline_limit: int) -> list[bytes]:
        raise UnsupportedModel("no text")

    monkeypatch.setattr(codecs, "TEXT", replace(codecs.TEXT, save=refuse))
    back = ir.from_json(graph_text(parse(TEXT)))
    assert [node.op_type for node in back.graph.node] == ["Mul", "Tanh", "ReduceMean", "NonZero"]


def test_unknown_names() -> None:
    with config.patch(log="forward-grap"), pytest.raises(UsageError, match="nearest: forward-graph"):
        graphopt.split(parse(TEXT), "loss")
