"""The named pipelines run exactly these passes in exactly this order."""

from __future__ import annotations

import pytest

import graphopt
from graphopt.passes.pipeline import Fixpoint, Pipeline, Step
from graphopt.pipelines import PIPELINES, PLANNED, SUMMARIES, registry
from tests.support import ops, parse, run_pipeline

CLEAN = [
    "dce",
    [
        "canonicalize", "constant-propagation", "fold-if", "merge-ifs", "sink-into-ifs", "unroll-loops",
        "index-split-lists", "gather-loop-lists", "trim-loops", "hoist-loop-invariants",
        "peephole", "constant-pooling", "cse", "split-slices", "dce",
    ],
    "merge-functions",
]  # fmt: skip

#: Names by pipeline; what a list inside holds is repeated until nothing changes.
GOLDEN = {
    "fallback": ["lower-grad-of", "remove-expands"],
    "noopt": ["inline-functions", "lower-grad-of", "remove-expands", "canonicalize", "dce"],
    "pre-autodiff": [
        "lower-grad-of", "specialize-autograd-zero", "remove-expands", "canonicalize", "dce",
        "peephole", "constant-propagation", "dce", "cse", "peephole", "constant-propagation",
        "constant-pooling", "unroll-loops", "remove-sequence-mutation", "peephole",
        "constant-propagation", "cse", "check-aliasing",
    ],
    "profiling-insensitive": [
        "inline-functions", "clear-profile", "lower-grad-of", "clear-undefinedness", "remove-expands",
        "canonicalize", "dce",
        "decompose", "constant-propagation", "dce", "cse", "constant-pooling", "peephole", "dce",
        "lower-sequences", "check-aliasing",
    ],
    "final": ["add-if-then-else"],
    "O0": [],
    "O1": CLEAN,
    "O2": CLEAN,
    "O3": [*CLEAN, "fuse-builtin", *CLEAN],
}  # fmt: skip


def names(steps: tuple[Step, ...]) -> list[object]:
    return [names(step.steps) if isinstance(step, Fixpoint) else step.name for step in steps]


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_passes_and_their_order(name: str) -> None:
    assert names(Pipeline.parse(name, registry()).steps) == GOLDEN[name]


def test_every_pipeline_and_planned_step_is_explained() -> None:
    assert list(SUMMARIES) == list(PIPELINES)
    named = {name for text in PIPELINES.values() for name in text.split(",")}
    assert set(PLANNED) <= named
    assert all(len(meaning) > 10 for meaning in PLANNED.values())


def test_profiling_insensitive_and_final_keep_the_meaning() -> None:
    text = """g (float[N,2] x, bool c) => (float[N,2] y, int64 n) <int64 first = {0}, int64 last = {-1}> {
        e = SequenceEmpty()
        s = SequenceInsert(e, x)
        t = SequenceInsert(s, x, first)
        u = SequenceAt(t, last)
        n = SequenceLength(t)
        v = Identity(u)
        y = If (c) <
            then_branch = a () => (float[N,2] p) { p = Identity(v) },
            else_branch = b () => (float[N,2] q) { q = Identity(x) }
        >
    }"""
    model = parse(text)
    report, _ = run_pipeline(model, "profiling-insensitive,final")
    assert not report.planned
    assert not [kind for kind in ops(model) if "Sequence" in kind]
    verdict = graphopt.verify(parse(text), model, bits=True)
    assert verdict.ok, verdict
