"""Decisions of the cost table about a model, in the report and in explanations."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt import config, ir
from graphopt.context import Options
from graphopt.cost import Costs, Decision, shipped
from graphopt.cost.calibration_models import SUBJECTS, UNFUSED, Subject
from graphopt.cost.cost_model import UNUSED_FIGURES, choices
from graphopt.errors import UsageError
from graphopt.ort.devices import Device
from tests.model_testing import ATTENTION_STEPS, ops, parse, run_pipeline
from tests.retyped_models import retyped

ATTENTION = (
    """g (float[1, LENGTH, 32] q, float[1, LENGTH, 32] k, float[1, LENGTH, 32] v) => (float[1, LENGTH, 32] y)
    <int64[4] heads = {0, 0, 4, 8}, int64[3] rows = {0, 0, 32}, float scale = {0.35}> {"""
    + ATTENTION_STEPS
    + "}"
)


def attention(length: int | str, opset: int = 17) -> ir.Model:
    return parse(ATTENTION.replace("LENGTH", str(length)), opset=opset)


def slow(costs: Costs, *names: str) -> Costs:
    """``costs`` in which operators are slower than the nodes they replace."""
    grids = tuple(
        replace(grid, ratios=tuple(1.5 for _ in grid.ratios)) if grid.op in names else grid
        for grid in costs.grids
    )
    return replace(costs, name="figures made up", grids=grids)


def optimized(model: ir.Model, costs: Costs, folder: Path) -> graphopt.api.Result:
    file = folder / "costs.json"
    file.write_text(costs.text())
    with config.patch(costs=str(file)):
        return graphopt.optimize(model, pipeline="O3", device="cpu")


@pytest.mark.parametrize(
    ("opset", "worse", "expected"),
    [
        (17, (), ["MultiHeadAttention"]),
        (23, (), ["Attention"]),
        (23, ("Attention",), ["MultiHeadAttention"]),
        (17, ("MultiHeadAttention",), None),
        (23, ("Attention", "MultiHeadAttention"), None),
    ],
)
def test_attention_becomes_the_fastest_operator_or_stays(
    opset: int, worse: tuple[str, ...], expected: list[str] | None, tmp_path: Path
) -> None:
    model = attention(16, opset)
    result = optimized(model, slow(shipped("cpu"), *worse), tmp_path)
    found = [op_type for op_type in ops(result.model) if op_type.endswith("Attention")]
    assert found == (expected or [])
    assert ("Softmax" in ops(result.model)) is (expected is None)


def test_masked_attention_of_halves_is_fused_on_cuda_also_with_native_kernels() -> None:
    """On the CPU it is not: the CPU's operator is slow with masks."""
    text = ATTENTION.replace("LENGTH", "16").replace("g (", "g (float[1, 1, 16, 16] mask, ")
    text = text.replace("Mul(s, scale)", "Mul(s, scale) m = Add(t, mask)").replace("(t)", "(m)")
    model = ir.from_proto(retyped(ir.to_proto(parse(text)), onnx.TensorProto.FLOAT16))
    device = Device("cuda")
    options = Options(kernels=True, device=device, costs=shipped(device.kind))
    run_pipeline(model, "fixpoint(peephole),fuse-builtin", options)
    assert "MultiHeadAttention" in ops(model)


def test_the_report_names_the_table_and_its_decisions(tmp_path: Path) -> None:
    report = optimized(attention(16), slow(shipped("cpu"), "MultiHeadAttention"), tmp_path).report
    text = "\n".join(report.lines(1))
    assert "fused operators chosen by figures made up" in text
    assert "MultiHeadAttention takes 1.50× the time of the nodes that it replaces at length 16" in text
    told = report.to_dict()["costs"]
    assert told["name"] == "figures made up"
    assert {"op": None, "ratio": 1.5}.items() <= told["decisions"][0].items()
    assert json.dumps(told)


def test_the_report_omits_a_table_that_was_not_consulted() -> None:
    report = graphopt.optimize(parse("g (float[N] x) => (float[N] y) { y = Relu(x) }"), pipeline="O3").report
    assert report.to_dict()["costs"] is None
    assert "chosen by" not in str(report)


def test_the_report_counts_decisions_in_plain_terms() -> None:
    report = graphopt.optimize(parse("g (float[N] x) => (float[N] y) { y = Relu(x) }"), pipeline="O3").report
    decisions = Counter([Decision("A", 0.5, "it pays"), Decision(None, 1.5, "it does not")])
    weighed = replace(report, costs=shipped("cpu"), decisions=decisions)
    assert "1 thread): 2 kinds of places weighed, 1 to fuse, 1 to leave" in str(weighed)
    without = replace(weighed, costs=Costs("no figures for CUDA", "cuda"))
    assert "  no figures for CUDA: the first choice of fused operators is taken everywhere" in str(without)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_operators_marked_as_used_anyway_are_used_and_others_consult_the_table(subject: Subject) -> None:
    """With figures under which no operator pays, only operators that do not consult the table are fused."""
    dear = tuple(replace(grid, ratios=(9.0,) * len(grid.ratios)) for grid in shipped("cpu").grids)
    costs = Costs("dear", "cpu", "nowhere", dear)
    competition = subject.make(**next(choices(subject.axes)))
    model = ir.from_proto(onnx.load_model_from_string(competition.models[UNFUSED]))
    was = ops(model)
    _, cx = run_pipeline(model, "fixpoint(peephole),fuse-builtin,batch-mm", Options(costs=costs))
    fused = [name for name in competition.models if name != UNFUSED and name not in was]
    made = [name for name in fused if name in ops(model)]
    if all(UNUSED_FIGURES.get(name) == "used anyway" for name in fused):
        assert made and not cx.decisions
    else:
        assert not made


def test_explain_reports_fusions_that_would_not_be_faster(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(slow(shipped("cpu"), "MultiHeadAttention").text())
    with config.patch(costs=str(file), device="cpu"):
        (missed,) = graphopt.api.explain(attention("N")).missed
    assert missed.reason.startswith("it would not be faster: MultiHeadAttention takes 1.50")
    assert "length unknown, 256 assumed (figures made up)" in missed.reason


def test_the_same_table_gives_the_same_bytes_and_another_may_give_others(tmp_path: Path) -> None:
    bytes_of = [
        ir.to_bytes(optimized(attention(16), costs, tmp_path).model)
        for costs in (shipped("cpu"), shipped("cpu"), slow(shipped("cpu"), "MultiHeadAttention"))
    ]
    assert bytes_of[0] == bytes_of[1] != bytes_of[2]


def test_missing_table_lists_the_existing_tables() -> None:
    with (
        config.patch(costs="shiped"),
        pytest.raises(UsageError, match=r"nearest: shipped .*auto, shipped, or a file"),
    ):
        graphopt.optimize(attention(64), pipeline="O3", device="cpu")
