"""The named pipelines run exactly these passes in exactly this order."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import graphopt
from graphopt import ir, passes, transforms
from graphopt.config import Settings
from graphopt.context import Context
from graphopt.errors import UsageError
from graphopt.optimization_attempt import prepare
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Pipeline, pipeline_text
from graphopt.passes.pipeline_steps import SLOTS, Fixpoint, IfGradient, Step
from graphopt.passes.pipelines import PIPELINES, SUMMARIES, make_pipeline, registry
from graphopt.profile.annotations import annotate, annotation_of
from graphopt.profile.value_profile import ValueProfile
from graphopt.specialization.build_variants import Specialization
from tests.model_testing import ops, parse, run_pipeline

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

NO_GRAD = [
    "pre-passes", "lower-sequences", "specialize-types", "batch-mm", "fuse-groups", "guard-groups",
    "post-passes", "remove-type-specializations", "lower-fallbacks",
]  # fmt: skip
NO_GRAD_BUILTIN = [
    "pre-passes", "lower-sequences", "batch-mm", "fuse-builtin", "guard-groups",
    "post-passes", "remove-type-specializations", "lower-fallbacks",
]  # fmt: skip

INSENSITIVE = [
    "inline-functions", "clear-profile", "lower-grad-of", "clear-undefinedness", "remove-expands",
    "canonicalize", "dce",
    "decompose", "constant-propagation", "dce", "cse", "constant-pooling", "peephole", "dce",
    "lower-sequences", "check-aliasing",
]  # fmt: skip

NOOPT = ["inline-functions", "lower-grad-of", "remove-expands", "canonicalize", "dce"]

GRADIENTS = [
    "create-autodiff-subgraphs", "differentiate", "inline-autodiff-subgraphs", "guard-groups",
    "lower-fallbacks", "remove-profile-nodes",
]  # fmt: skip
PROFILING = [*PRE_AUTODIFF, {"then": GRADIENTS, "otherwise": NO_GRAD}, "dce"]
PROFILING_BUILTIN = [*PRE_AUTODIFF, {"then": GRADIENTS, "otherwise": NO_GRAD_BUILTIN}, "dce"]
PROFILING_GRADIENTS = [*PRE_AUTODIFF, *GRADIENTS, "dce"]
LAST = ["lower-fallbacks", "add-if-then-else", "check-strict-fusion"]

FUSED = ["decompose", *CLEAN, "batch-mm", "fuse-builtin", *CLEAN]
POST_GRAD = ["batch-mm", "fuse-builtin", "views-to-reshape", *CLEAN]

PRE_GRAD = ["canonicalize", "remove-expands", {"then": [], "otherwise": ["peephole"]}]
JOINT = [["peephole", "constant-propagation", "cse", "dce"]]
INNER = ["views-to-reshape", "infer-shapes", *POST_GRAD, "pad-mm", "promote-types"]

#: Names by pipeline; the passes of an inner list are repeated until none changes the model, and those of a dict
#: are the paths with and without gradients.
GOLDEN = {
    "fallback": ["lower-grad-of", "remove-expands"],
    "noopt": NOOPT,
    "pre-autodiff": PRE_AUTODIFF,
    "no-grad": NO_GRAD,
    "no-grad-builtin": NO_GRAD_BUILTIN,
    "gradients": GRADIENTS,
    "profiling": PROFILING,
    "profiling-builtin": PROFILING_BUILTIN,
    "profiling-gradients": PROFILING_GRADIENTS,
    "profiling-noopt": NOOPT,
    "profiling-insensitive": INSENSITIVE,
    "profiling-insensitive-noopt": INSENSITIVE[1:7],
    "forward": [
        "remove-type-specializations", "remove-profile-nodes", "update-requires-grad", "lower-fallbacks",
    ],
    "joint": JOINT,
    "post-grad": POST_GRAD,
    "post-grad-native": [*POST_GRAD, "fuse-groups"],
    "pre-grad": PRE_GRAD,
    "inner": INNER,
    "inference": [*PRE_GRAD, *JOINT, *INNER],
    "training": [*JOINT, *INNER],
    "freezing": [*PRE_GRAD, *JOINT, "infer-shapes", "layout", "freeze", *INNER],
    "ahead": [*PRE_GRAD, *JOINT, *INNER],
    "final": ["add-if-then-else"],
    "plan-general": INSENSITIVE,
    "plan-profiled": [*INSENSITIVE, "instrument", "profile-autograd-zero"],
    "plan-optimized": ["drop-counters", *PROFILING, *LAST],
    "plan-optimized-builtin": ["drop-counters", *PROFILING_BUILTIN, *LAST],
    "plan-optimized-gradients": ["drop-counters", *PROFILING_GRADIENTS, *LAST],
    "O0": [],
    "O1": [*CLEAN, "promote-types"],
    "O2": [*CLEAN, "promote-types"],
    "O3": [*FUSED, "promote-types"],
    "native": ["dissolve-groups", *FUSED, "fuse-groups", "promote-types"],
}  # fmt: skip


#: Pipelines with batch-mm in which custom passes run first and last.
WITHOUT_POSITIONS = {
    "O3", "native", "post-grad", "post-grad-native", "inner", "inference", "training", "freezing", "ahead",
}  # fmt: skip


def names(steps: tuple[Step, ...]) -> list[object]:
    found: list[object] = []
    for step in steps:
        if isinstance(step, Fixpoint):
            found.append(names(step.steps))
        elif isinstance(step, IfGradient):
            found.append({"then": names(step.then), "otherwise": names(step.otherwise)})
        else:
            found.append(step.name)
    return found


def flat(golden: object) -> list[str]:
    """All names, each path of a choice in turn."""
    if isinstance(golden, str):
        return [golden]
    items = golden.values() if isinstance(golden, dict) else golden
    assert isinstance(items, Iterable)
    return [name for item in items for name in flat(item)]


def filled(golden: object, own: dict[object, list[str]]) -> object:
    """``golden`` with ``own`` passes in place of the placeholders."""
    if isinstance(golden, dict):
        return {key: filled(path, own) for key, path in golden.items()}
    if not isinstance(golden, list):
        return golden
    return [step for item in golden for step in own.get(str(item), [filled(item, own)])]


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_passes_and_their_order(name: str) -> None:
    assert names(Pipeline.parse(name, registry()).steps) == GOLDEN[name]


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_positions_of_custom_passes(name: str) -> None:
    """First and last, except for the pipeline without gradients, which has sites for them."""
    own: dict[object, list[str]] = {"pre-passes": ["split-slices", "dce"], "post-passes": ["cse"]}
    golden = GOLDEN[name]
    steps = flat(golden)
    assert (
        ("pre-passes" in steps)
        == ("post-passes" in steps)
        == ("batch-mm" in steps and name not in WITHOUT_POSITIONS)
    )
    expected = filled(golden, own)
    if "pre-passes" not in steps:
        expected = [*own["pre-passes"], *golden, *own["post-passes"]]
    made = make_pipeline(name, ["split-slices", "dce"], ["cse"])
    assert names(made.steps) == expected
    assert names(make_pipeline(name).steps) == filled(golden, {name: [] for name in own})


def test_custom_passes_in_no_grad_observe_annotations() -> None:
    seen: list[object] = []

    @dataclass(frozen=True)
    class Look(Pass):
        name: ClassVar[str] = "look"

        def run(self, model: ir.Model, cx: Context) -> None:
            x = model.graph.inputs[0]
            seen.append((annotation_of(x) is not None, [str(dim) for dim in x.shape or ()]))

    model = parse("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    annotate(model, {"x": ValueProfile("tensor(float)", (7, 4))})
    result, _ = graphopt.optimize(
        model, pipeline="profiling", pre_passes=[Look()], post_passes=[Look()], verify=False
    )
    assert seen == [(True, ["N", "4"]), (False, ["7", "4"])]
    assert [str(dim) for dim in result.graph.inputs[0].shape or ()] == ["N", "4"]


@pytest.mark.parametrize("body", [False, True])
def test_requires_grad_selects_the_path_with_gradients(body: bool) -> None:
    """Unknown requirements count as none."""
    text = """g (float[N,4] x, bool c) => (float[N,4] y) {
        t = Sin(x)
        u = Exp(t)
        y = If (c) <then_branch = a () => (float[N,4] p) { p = Neg(u) }, else_branch = b () => (float[N,4] q) { q = Abs(u) }>
    }"""
    model = parse(text)
    assert "autodiff" not in str(graphopt.optimize(model, pipeline="profiling").model.functions)
    values = {value.name: value for graph in ir.graphs_of(model) for value in ir.values_of(graph)}
    values["x"].metadata_props["graphopt.requires_grad"] = "false"
    assert not [
        note for note in graphopt.optimize(model, pipeline="profiling").report.notes() if "gradients" in note
    ]
    values["p" if body else "x"].metadata_props["graphopt.requires_grad"] = "true"
    report = graphopt.optimize(model, pipeline="profiling").report
    note = f"optimized for gradients, because {'p' if body else 'x'!r} requires one"
    assert note in report.notes() and not [text for text in report.notes() if "native groups" in text]
    assert report.verdict is not None and report.verdict.ok


def test_paths_in_pipeline_text() -> None:
    text = "dce,if-gradient(cse,fixpoint(peephole,dce),otherwise,canonicalize),dce"
    made = Pipeline.parse(text, registry())
    assert str(made) == text and pipeline_text(made.steps[1], registry()) == str(made.steps[1])
    assert [step.name for step in made.passes()] == ["dce", "cse", "peephole", "dce", "canonicalize", "dce"]
    with pytest.raises(UsageError, match="if-gradient needs two paths"):
        Pipeline.parse("if-gradient(cse)", registry())


def test_custom_passes_inside_a_fixpoint() -> None:
    made = make_pipeline("dce,fixpoint(pre-passes,cse)", ["canonicalize"], ["dce"])
    assert names(made.steps) == ["dce", ["canonicalize", "cse"], "dce"]
    assert names(make_pipeline("fixpoint(pre-passes,cse)").steps) == [["cse"]]


def test_opset_conversion_precedes_custom_passes_and_strip_docs_is_last() -> None:
    prepared = prepare(
        Settings(),
        pipeline="no-grad",
        pre_passes=["cse"],
        post_passes=["dce"],
        target_opset=18,
        strip_docs=True,
    )
    expected = [*NO_GRAD[1:-3], "dce", *NO_GRAD[-2:]]
    assert names(prepared.pipeline.steps) == ["convert-opset", "cse", *expected, "strip-docs"]


@pytest.mark.parametrize(
    ("text", "ran"), [("dce,cse", ["dce", "cse", "dce"]), ("cse,dce", ["cse", "dce", "cse", "dce"])]
)
def test_fixpoint_ends_after_each_step_leaves_the_model_unchanged(text: str, ran: list[str]) -> None:
    model = parse("g (float[2] x) => (float[2] y) { unread = Neg(x) y = Relu(x) }")
    history, _ = run_pipeline(model, f"fixpoint({text})")
    assert [record.name for record in history.records] == ran
    assert [record.nodes for record in history.records] == [2] * text.startswith("cse") + [1] * 3


def test_every_pass_is_found() -> None:
    """Passes are looked up by the names of their files."""
    for package in (passes, transforms):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            defined = vars(importlib.import_module(info.name)).values()
            for kind in defined:
                if isinstance(kind, type) and issubclass(kind, Pass) and "name" in vars(kind):
                    assert registry().passes[kind.name] is kind
    assert list(registry().passes) == sorted(registry().passes)
    assert not {"base", "fold_if", "registry", "O2"} & set(registry().passes)


def test_every_pipeline_is_explained() -> None:
    assert sorted(SUMMARIES) == sorted(PIPELINES)
    named = {name for text in PIPELINES.values() for name in re.split(r"[,()]", text)}
    assert set(SLOTS) <= named


def test_profiling_insensitive_and_final_preserve_semantics() -> None:
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
    run_pipeline(model, "profiling-insensitive,final")
    assert not [kind for kind in ops(model) if "Sequence" in kind]
    verdict = graphopt.verify(parse(text), model)
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["profiling-gradients", "plan-optimized-gradients"])
def test_pipelines_with_gradients_run_all_steps(name: str) -> None:
    text = """g (float[N,2] x) => (float[N,2] y) <int64 first = {0}, float zero = {-0.0}> {
        s = SequenceConstruct(x, x)
        u = SequenceAt(s, first)
        v = Relu(u)
        y = Add(v, zero)
    }"""
    model, report = graphopt.optimize(parse(text), pipeline=name)
    assert report.verdict is not None and report.verdict.ok and "Relu" in ops(model)


def test_dump_of_plan_profiled() -> None:
    """The counter of runs is last; values are watched in the main graph and in bodies."""
    model = parse("""g (float[N] x, bool c) => (int64[1, M] y) {
        s = Abs(x)
        t = Abs(s)
        y = If (c) <
            then_branch = a () => (int64[1, P] p) { p = NonZero(t) },
            else_branch = b () => (int64[1, Q] q) { q = NonZero(x) }
        >
    }""")
    result, report = graphopt.optimize(model, pipeline="plan-profiled")
    assert report.verdict is not None and report.verdict.ok
    assert _calls(result.graph) == [
        "Profile x", "Profile c", "Abs", "If", "then NonZero", "then Profile p", "else NonZero", "else Profile q",
        "Profile y", "Counter",
    ]  # fmt: skip
    annotate(result, {"x": ValueProfile("tensor(float)", (7,))})
    run_pipeline(result, "drop-counters")
    values = [value for graph in ir.graphs_of(result) for value in ir.values_of(graph)]
    noted = [value.name for value in values if annotation_of(value)]
    assert noted == ["x"]
    final, _ = graphopt.optimize(result, pipeline="plan-optimized", verify=False)
    assert _calls(final.graph) == ["Abs", "If", "then NonZero", "else NonZero"]
    assert [str(dim) for dim in final.graph.inputs[0].shape or ()] == ["N"]


def test_dump_of_plan_profiled_with_a_profile() -> None:
    """The inputs of the variant are declared as profiled; the same kinds of values are watched."""
    model = parse("""g (float[N] x) => (float[M] y, int64[1, P] z) {
        s = Shape(x)
        y = Expand(x, s)
        z = NonZero(x)
    }""")
    profile = graphopt.record_profile(model, [{"x": np.ones(3, np.float32)}] * 2)
    found = graphopt.api.specialize(model, Specialization(profile), bundle=True, pipeline="plan-profiled")
    (branch,) = found.branches
    assert _calls(found.general.graph) == ["Profile x", "NonZero", "Profile z", "Identity", "Counter"]
    assert _calls(branch.model.graph) == ["Profile x", "NonZero", "Profile z", "Identity", "Counter"]
    assert [str(value.shape) for value in (found.general.graph.inputs[0], branch.model.graph.inputs[0])] == [
        "[N]", "[3]",
    ]  # fmt: skip


def _calls(graph: ir.Graph, prefix: str = "") -> list[str]:
    found = []
    for node in graph:
        value = node.attributes.get("value")
        watched = f" {value.as_string()}" if value is not None and node.domain == "graphopt.profile" else ""
        found.append(f"{prefix}{node.op_type}{watched}")
        for name in ("then_branch", "else_branch"):
            if name in node.attributes:
                found += _calls(node.attributes[name].as_graph(), f"{name[:4]} ")
    return found
