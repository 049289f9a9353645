"""Golden dumps of the pipelines that guard groups of nodes."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate
from tests.model_testing import run_pipeline
from tests.transforms.guarded_models import selected_rows

PIPELINES = ["profiling-builtin", "plan-optimized-builtin"]


def _dump(pipeline: str, *, annotated: bool = True) -> str:
    model = selected_rows()
    if annotated:
        annotate(model, {"found": ValueProfile("tensor(int64)", (1, 3))})
    run_pipeline(model, pipeline)
    return ir.print_model(model)


GUARDED = """\
ir 8, ai.onnx 17
graph "g" {
  input %x: f32[N, 4]
  constant %w: f32[4, 4] #174d
  %firsts = Gather(%x, {0}, axis=1)
  %flag = Greater(%firsts, {0.5})
  %found: i64[1, K] = NonZero(%flag)
  %index = Squeeze(%found, {[0]})
  %chosen = Gather(%x, %index)
  %guard_Shape_output_0 = Shape(%chosen)
  %guard_Gather~jd3v = Gather(%guard_Shape_output_0, {[0]}, axis=0)
  %guard_Equal_output_0 = Equal(%guard_Gather~jd3v, {[3]})
  %guard_Reshape~j6ya: bool[] = Reshape(%guard_Equal_output_0, {[]})
  %psum: f32[...] = If(%guard_Reshape~j6ya)
    then_branch {
      %psum_special: f32[...] = Gemm(%chosen, %w, {[[0.0], [0.0], [1.0]]})  # Add_Gemm_special
      output %psum_special: f32[...]
    }
    else_branch {
      %product = MatMul(%chosen, %w)
      %psizes = Shape(%product)
      %pn = Gather(%psizes, {0})
      %prange = Range({0}, %pn, {1})
      %prow = Unsqueeze(%prange, {[0]})
      %pcolumn = Unsqueeze(%prange, {[1]})
      %phidden = Greater(%prow, %pcolumn)
      %pfar = Cast(%phidden, to=1)
      %ptotal = ReduceSum(%pfar, {[0]}, keepdims=0)
      %pvector = Unsqueeze(%ptotal, {[1]})
      %pscaled = Mul(%pvector, {0.5})
      %pwhole = Floor(%pscaled)
      %psum_replaced = Add(%product, %pwhole)
      output %psum_replaced
    }
  %y: f32[K, 4] = Relu(%psum)
  output %y: f32[K, 4]
  output %found: i64[1, K]
}
"""

#: The result of ``guard-groups`` alone.
CHECKED = """\
ir 8, ai.onnx 17, graphopt.profile 1
graph "g" {
  input %x: f32[N, 4]
  constant %w: f32[4, 4] #174d
  %firsts = Gather(%x, {0}, axis=1)
  %flag = Greater(%firsts, {0.5})
  %found: i64[1, K] = NonZero(%flag)
  %index = Squeeze(%found, {[0]})
  %chosen = Gather(%x, %index)
  %psum_check_output_0: bool[] = graphopt.profile::TypeCheck(%chosen, seen='[{"type": "", "shape": [3, "?"]}]')
  %psum: f32[...] = If(%psum_check_output_0)
    then_branch {
      %psum_special: f32[...] = Gemm(%chosen, %w, {[[0.0], [0.0], [1.0]]})  # Add_Gemm_special
      output %psum_special: f32[...]
    }
    else_branch {
      %product = MatMul(%chosen, %w)
      %psizes = Shape(%product)
      %pn = Gather(%psizes, {0})
      %prange = Range({0}, %pn, {1})
      %prow = Unsqueeze(%prange, {[0]})
      %pcolumn = Unsqueeze(%prange, {[1]})
      %phidden = Greater(%prow, %pcolumn)
      %pfar = Cast(%phidden, to=1)
      %ptotal = ReduceSum(%pfar, {[0]}, keepdims=0)
      %pvector = Unsqueeze(%ptotal, {[1]})
      %pscaled = Mul(%pvector, {0.5})
      %pwhole = Floor(%pscaled)
      %psum_replaced = Add(%product, %pwhole)
      output %psum_replaced
    }
  %y: f32[K, 4] = Relu(%psum)
  output %y: f32[K, 4]
  output %found: i64[1, K]
}
"""

GENERAL = """\
ir 8, ai.onnx 17
graph "g" {
  input %x: f32[N, 4]
  constant %w: f32[4, 4] #174d
  %firsts = Gather(%x, {0}, axis=1)
  %flag = Greater(%firsts, {0.5})
  %found: i64[1, K] = NonZero(%flag)
  %index = Squeeze(%found, {[0]})
  %chosen = Gather(%x, %index)
  %product = MatMul(%chosen, %w)
  %psizes = Shape(%product)
  %pn = Gather(%psizes, {0})
  %prange = Range({0}, %pn, {1})
  %prow = Unsqueeze(%prange, {[0]})
  %pcolumn = Unsqueeze(%prange, {[1]})
  %phidden = Greater(%prow, %pcolumn)
  %pfar = Cast(%phidden, to=1)
  %ptotal = ReduceSum(%pfar, {[0]}, keepdims=0)
  %pvector = Unsqueeze(%ptotal, {[1]})
  %pscaled = Mul(%pvector, {0.5})
  %pwhole = Floor(%pscaled)
  %psum = Add(%product, %pwhole)
  %y: f32[K, 4] = Relu(%psum)
  output %y: f32[K, 4]
  output %found: i64[1, K]
}
"""


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_pipelines_guard_groups_by_the_profile(pipeline: str) -> None:
    assert _dump(pipeline).rstrip("\n") == GUARDED.rstrip("\n")


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_pipelines_without_a_profile_guard_nothing(pipeline: str) -> None:
    assert _dump(pipeline, annotated=False).rstrip("\n") == GENERAL.rstrip("\n")


def test_a_check_names_its_assumptions_before_it_is_lowered() -> None:
    assert _dump("guard-groups").rstrip("\n") == CHECKED.rstrip("\n")
