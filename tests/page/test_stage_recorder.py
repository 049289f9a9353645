"""The recorded stages: their differences turn the original into the result."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from graphopt.page import stage_recorder
from graphopt.page.stage_recorder import StageRecorder
from tests.model_testing import parse

MODEL = """
g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) <float zero = {-0.0}, float[2] p = {1, 2}> {
  a = Identity(x)
  b = Relu(a)
  s = Sub(x, b)
  n = Neg(s)
  q = ReduceSum(p)
  y = Add(n, q)
  z = Add(n, zero)
}
"""


def names_of(model: ir.Model) -> list[str]:
    nodes = (node for graph in ir.graphs_of(model) for node in graph if node.op_type != "Constant")
    return sorted(map(ir.label, nodes))


def test_the_differences_of_all_stages_lead_from_the_original_to_the_result() -> None:
    recorder = StageRecorder()
    model = parse(MODEL)
    result = graphopt.optimize(model, verify=False, instruments=[recorder], cache=False)
    names = names_of(model)
    for stage in recorder.stages:
        for name in stage.removed:
            names.remove(name)
        names += [added[0] for added in stage.added]
    assert sorted(names) == names_of(result.model)
    assert names_of(result.model) != names_of(model)


def test_stages_have_the_figures_of_the_records() -> None:
    recorder = StageRecorder()
    result = graphopt.optimize(parse(MODEL), verify=False, instruments=[recorder], cache=False)
    records = result.report.passes
    assert [(stage.index, stage.name, stage.nodes) for stage in recorder.stages] == [
        (record.index, record.text, record.nodes) for record in records
    ]
    assert [stage.rewrites for stage in recorder.stages] == [dict(record.rewrites) for record in records]
    assert recorder.stages[-1].weight_bytes == result.report.optimized.weight_bytes


def test_added_nodes_name_their_maker() -> None:
    recorder = StageRecorder()
    graphopt.optimize(parse(MODEL), verify=False, instruments=[recorder], cache=False)
    added = [one for stage in recorder.stages for one in stage.added]
    assert any(op == "Sub" and by == "swap-difference" for _, op, _, _, by in added)


def test_unlisted_differences_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = StageRecorder(), StageRecorder()
    graphopt.optimize(parse(MODEL), verify=False, instruments=[whole], cache=False)
    monkeypatch.setattr(stage_recorder, "_MOST", 1)
    graphopt.optimize(parse(MODEL), verify=False, instruments=[part], cache=False)
    for all_, few in zip(whole.stages, part.stages, strict=True):
        total = len(all_.removed) + len(all_.added) + len(all_.changed)
        assert few.truncated == max(0, total - 1)
        assert len(few.removed) + len(few.added) + len(few.changed) == min(total, 1)
