"""Kernels after reductions of empty tensors by onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.fusion.group_functions import groups_of
from tests.fusion.backends.c.runtime import samples
from tests.model_testing import parse, run_pipeline

#: The rank of ``r``, which a kernel reads, depends on the axis; ReduceLogSumExp has no kernel.
LEFT = """g (float[N,M] x) => (float[N] y) <int64[1] a = {-1}, int64[1] other = {1}> {
    r = ReduceLogSumExp <keepdims = 0> (x, a)
    t = Tanh(r)
    y = Exp(t)
}"""
#: The kernel is in the body of a loop, the reduction outside.
LOOP = """g (float[N,M] x) => (float[1,M] y) <int64[1] a = {-2}, int64 trips = {3}, bool go = {1}> {
    r = ReduceLogSumExp (x, a)
    y = Loop (trips, go, r) <body = b (int64 i, bool again, float[] state) => (bool more, float[] next) {
        m = Max(state, r)
        more = Identity(again)
        f = Cast <to = 1> (i)
        next = Add(m, f)
    }>
}"""


def axes(model: ir.Model) -> list[list[int]]:
    nodes = [node for graph in ir.graphs_of(model) for node in graph if node.op_type.startswith("Reduce")]
    tensors = [ir.constant_of(node.inputs[1]) if len(node.inputs) > 1 else None for node in nodes]
    return [
        tensor.numpy().tolist() if tensor is not None else list(node.attributes["axes"].as_ints())
        for node, tensor in zip(nodes, tensors, strict=True)
    ]


@pytest.mark.parametrize("text, counted", [(LEFT, [[1]]), (LOOP, [[0]])])
def test_axes_of_possibly_empty_reductions_become_nonnegative(text, counted):
    model = parse(text, opset=18)
    run_pipeline(model, "fuse-groups")
    assert groups_of(model)
    assert axes(model) == counted
    assert "a" not in model.graph.initializers
    before = len(model.graph.initializers)
    run_pipeline(model, "fuse-groups")
    assert axes(model) == counted and len(model.graph.initializers) == before


def test_axes_attributes_become_nonnegative():
    model = parse(
        LEFT.replace("(x, a)", "(x)").replace("keepdims = 0", "keepdims = 0, axes = [-1]"), opset=17
    )
    run_pipeline(model, "fuse-groups")
    assert axes(model) == [[1]]


def test_axis_of_argmax_becomes_nonnegative():
    text = """g (float[N,M] x) => (float[N] y) {
        r = ArgMax <axis = -1, keepdims = 0> (x)
        f = Cast <to = 1> (r)
        t = Tanh(f)
        y = Exp(t)
    }"""
    model = parse(text, opset=18)
    run_pipeline(model, "fuse-groups")
    assert groups_of(model)
    assert [node.attributes["axis"].as_int() for node in model.graph if node.op_type == "ArgMax"] == [1]


@pytest.mark.parametrize(
    "old, new",
    [("float[N,M]", "float[3,4]"), ("t = Tanh(r)", "t = Identity(r)")],
    ids=["never empty", "no groups"],
)
def test_other_axes_are_unchanged(old, new):
    model = parse(LEFT.replace(old, new).replace("float[N] y", "float[A] y"), opset=18)
    run_pipeline(model, "fuse-groups")
    assert axes(model) == [[-1]]


def test_reductions_that_no_kernel_depends_on_keep_the_shapes_of_onnxruntime():
    """As do all reductions with ``exact``, which has no kernels."""
    text = LEFT.replace("(float[N] y)", "(float[N] y, float[?,?] m)").replace(
        "y = Exp", "m = ReduceMean <keepdims = 1> (x, a) y = Exp"
    )
    model = parse(text, opset=18)
    run_pipeline(model, "fuse-groups")
    assert groups_of(model) and axes(model) == [[1], [-1]]
    exact, _ = graphopt.optimize(parse(text, opset=18), fuser="native", exact=True, verify=False)
    assert not groups_of(exact) and axes(exact) == [[-1], [-1]]


@samples.compiled
@pytest.mark.parametrize("text, shape, expected", [(LEFT, (0, 3), (0,)), (LOOP, (0, 3), (1, 3))])
def test_kernels_run_after_empty_reductions(text, shape, expected):
    model, _ = graphopt.optimize(parse(text, opset=18), pipeline="fuse-groups", verify=False)
    for libraries in ({}, {"libraries": ()}):
        found = graphopt.run(model, {"x": np.ones(shape, np.float32)}, **libraries)
        assert found["y"].shape == expected
