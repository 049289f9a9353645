"""Passes that name the operators without which they change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.ir.io.proto_conversion import from_proto
from graphopt.passes.base import Pass
from graphopt.passes.pipelines import registry
from tests.model_testing import parse
from zoo import SAMPLES

_PASSES = [kind for kind in registry().passes.values() if kind.operators]

_SCAN = """
main (float[4, 2] xs, float[2] w, float[2] h) => (float[2] last, float[4, 2] rows) {
    last, rows = Scan <num_scan_inputs = 1, body = step (float[2] s, float[2] x) => (float[2] t, float[2] r) {
        double = Add(w, w)
        t = Identity(s)
        r = Mul(x, double)
    }> (h, xs)
}"""
_LOOP = """
main (float[2] x, float[2] w) => (float[2] last) {
    trips = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    last = Loop <body = step (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
        d = Identity(c)
        double = Add(w, w)
        t = Add(s, double)
    }> (trips, go, x)
}"""
_IF = """
main (bool c, float[2, 2] x) => (float[2, 2] a, float[2, 2] b) {
    v = If <then_branch = t () => (float[2, 2] p) {p = Identity(x)},
            else_branch = e () => (float[2, 2] q) {q = Transpose(x)}> (c)
    w = If <then_branch = t () => (float[2, 2] p) {p = Neg(x)}, else_branch = e () => (float[2, 2] q) {q = Abs(x)}> (c)
    a = Transpose(v)
    b = Identity(w)
}"""
_CONSTANT_IF = """
main (float[2] x) => (float[2] y) {
    c = Constant <value = bool {1}> ()
    y = If <then_branch = t () => (float[2] p) {p = Neg(x)}, else_branch = e () => (float[2] q) {q = Abs(x)}> (c)
}"""
_LIST = """
main (float[3, 2] x, int64 i) => (float[1, 2] y) {
    parts = SplitToSequence <axis = 0> (x)
    y = SequenceAt(parts, i)
}"""
_SLICES = """
main (float[4] x) => (float[2] a, float[2] b) {
    zero = Constant <value = int64[1] {0}> ()
    two = Constant <value = int64[1] {2}> ()
    four = Constant <value = int64[1] {4}> ()
    a = Slice(x, zero, two)
    b = Slice(x, two, four)
}"""


def _models() -> dict[str, Callable[[], ir.Model]]:
    texts = {
        "scan": _SCAN,
        "loop": _LOOP,
        "if": _IF,
        "constant-if": _CONSTANT_IF,
        "list": _LIST,
        "slices": _SLICES,
    }
    samples = {name: lambda sample=sample: from_proto(sample.build()) for name, sample in SAMPLES.items()}
    return {name: lambda text=text: parse(text) for name, text in texts.items()} | samples


@pytest.mark.parametrize("kind", _PASSES, ids=lambda kind: kind.name)
def test_pass_changes_only_models_with_its_operators(kind: type[Pass]) -> None:
    changed = []
    for name, make in _models().items():
        model = make()
        operators = {node.op_type for graph in ir.graphs_of(model) for node in graph}
        cx = context_for(model)
        before = cx.edit.revision
        kind().run(model, cx)
        if cx.edit.revision != before:
            changed.append(name)
            assert operators & kind.operators, name
    assert changed or kind.name == "gather-loop-lists", "no model exercises the pass"
