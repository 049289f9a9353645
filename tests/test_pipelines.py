"""The named pipelines run exactly these passes in exactly this order."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import graphopt
from graphopt import passes
from graphopt.passes.base import Pass
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

PRE_AUTODIFF = [
    "lower-grad-of", "specialize-autograd-zero", "remove-expands", "canonicalize", "dce",
    "peephole", "constant-propagation", "dce", "cse", "peephole", "constant-propagation",
    "constant-pooling", "unroll-loops", "remove-sequence-mutation", "peephole",
    "constant-propagation", "cse", "check-aliasing",
]  # fmt: skip

NO_GRAD = ["lower-sequences", "specialize-types", "batch-mm", "fuse-groups", "remove-type-specializations"]

#: Names by pipeline; what a list inside holds is repeated until nothing changes.
GOLDEN = {
    "fallback": ["lower-grad-of", "remove-expands"],
    "noopt": ["inline-functions", "lower-grad-of", "remove-expands", "canonicalize", "dce"],
    "pre-autodiff": PRE_AUTODIFF,
    "no-grad": NO_GRAD,
    "no-grad-builtin": ["lower-sequences", "batch-mm", "fuse-builtin", "remove-type-specializations"],
    "profiling": [*PRE_AUTODIFF, *NO_GRAD, "dce"],
    "profiling-gradients": [
        *PRE_AUTODIFF, "create-autodiff-subgraphs", "differentiate", "inline-autodiff-subgraphs",
        "lower-fallbacks", "remove-profile-nodes", "dce",
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
    "O3": [*CLEAN, "batch-mm", "fuse-builtin", *CLEAN],
}  # fmt: skip


def names(steps: tuple[Step, ...]) -> list[object]:
    return [names(step.steps) if isinstance(step, Fixpoint) else step.name for step in steps]


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_passes_and_their_order(name: str) -> None:
    assert names(Pipeline.parse(name, registry()).steps) == GOLDEN[name]


@pytest.mark.parametrize(
    ("text", "ran"), [("dce,cse", ["dce", "cse", "dce"]), ("cse,dce", ["cse", "dce", "cse", "dce"])]
)
def test_a_fixpoint_ends_when_each_step_has_met_the_model_as_it_is(text: str, ran: list[str]) -> None:
    model = parse("g (float[2] x) => (float[2] y) { unread = Neg(x) y = Relu(x) }")
    history, _ = run_pipeline(model, f"fixpoint({text})")
    assert [record.name for record in history.records] == ran
    assert [record.nodes for record in history.records] == [2] * text.startswith("cse") + [1] * 3


def test_every_pass_is_found() -> None:
    """Passes are looked up by the names of their files."""
    for info in pkgutil.iter_modules(passes.__path__):
        defined = vars(importlib.import_module(f"graphopt.passes.{info.name}")).values()
        for kind in defined:
            if isinstance(kind, type) and issubclass(kind, Pass) and "name" in vars(kind):
                assert registry().passes[kind.name] is kind
    assert list(registry().passes) == sorted(registry().passes)
    assert not {"base", "fold_if", "registry", "O2"} & set(registry().passes)


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
    verdict = graphopt.verify(parse(text), model)
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["no-grad", "profiling", "profiling-gradients"])
def test_what_is_not_built_yet_is_skipped_and_told(name: str) -> None:
    text = """g (float[N,2] x) => (float[N,2] y) <int64 first = {0}, float zero = {-0.0}> {
        s = SequenceConstruct(x, x)
        u = SequenceAt(s, first)
        v = Relu(u)
        y = Add(v, zero)
    }"""
    model, report = graphopt.optimize(parse(text), pipeline=name)
    assert report.planned == [step for step in map(str, GOLDEN[name]) if step in PLANNED] != []
    assert report.verdict is not None and report.verdict.ok and "Relu" in ops(model)
    assert [note for note in report.notes() if note == f"not built yet: {', '.join(report.planned)}"]
