"""Later rounds of a fixpoint visit only the nodes near changes, with the result of rounds over all nodes."""

from __future__ import annotations

import importlib
import pkgutil
import re
from random import Random

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.scaling import transformer
from graphopt import ir, rules
from graphopt.api import context_for
from graphopt.context import Context
from graphopt.passes import changed_neighborhood
from graphopt.passes.base import Pass
from graphopt.passes.changed_neighborhood import Snapshot
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.rewrite.pattern import OpPattern
from graphopt.rules import all_rules, building_blocks
from tests.fuzz.graphs.generate import generate
from tests.ort.build import parse

_PIPELINE = "dce,fixpoint(canonicalize,constant-propagation,peephole,constant-pooling,cse,dce)"


class Attempts(PassInstrumentation):
    """The number of tried rules in each run of peephole."""

    def __init__(self) -> None:
        self.tried: list[int] = []
        self._before = 0

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        self._before = cx.attempts

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        if pass_.name == "peephole":
            self.tried.append(cx.attempts - self._before)


def _optimized(proto: onnx.ModelProto) -> tuple[bytes, list[int]]:
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    model, attempts = ir.from_proto(copy), Attempts()
    with context_for(model) as cx:
        Pipeline.parse(_PIPELINE, registry()).run(model, cx, [attempts])
    return ir.to_proto(model).SerializeToString(deterministic=True), attempts.tried


def test_last_round_of_a_transformer_tries_few_rules() -> None:
    _, tried = _optimized(transformer(1900))
    assert len(tried) == 3
    assert tried[2] < tried[1] / 3
    _, longer = _optimized(transformer(2500))
    assert longer[2] == tried[2]


def test_partial_rounds_find_the_same_in_random_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_neighborhood, "_MAX_DISTANCE", 8)  # the graphs are too small for the default
    monkeypatch.setattr(changed_neighborhood, "_MIN_SAVING", 1)
    changed_nodes, skipped = Snapshot.changed_nodes, 0

    def counted(self: Snapshot, cx: Context) -> frozenset[ir.Node] | None:
        nonlocal skipped
        found = changed_nodes(self, cx)
        skipped += 0 if found is None else len(cx.model.graph) - len(found)
        return found

    for seed in range(60):
        proto = generate(Random(seed))
        with monkeypatch.context() as patch:
            patch.setattr(Snapshot, "changed_nodes", counted)
            partial, _ = _optimized(proto)
            patch.setattr(Snapshot, "changed_nodes", lambda self, cx: None)
            full, _ = _optimized(proto)
        assert partial == full, f"seed {seed}"
    assert skipped > 100


def _chain(length: int) -> ir.Model:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)]
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v0", f"v{length}")]
    graph = helper.make_graph(nodes, "chain", declared[:1], declared[1:])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def _names(nodes: frozenset[ir.Node] | None) -> set[str | None] | None:
    return None if nodes is None else {node.name for node in nodes}


def test_neighborhood_of_an_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_neighborhood, "_MAX_DISTANCE", 2)
    model = _chain(20)
    with context_for(model) as cx:
        before = Snapshot.of(cx)
        assert _names(before.changed_nodes(cx)) == set()
        cx.edit.set_attribute(model.graph[10], "note", 1)
        # two nodes before the change; two after it, and two around these
        assert _names(before.changed_nodes(cx)) == {f"n{i}" for i in range(8, 15)}


def test_removal_of_a_reader_concerns_the_remaining_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_neighborhood, "_MAX_DISTANCE", 1)
    model = _chain(20)
    with context_for(model) as cx:
        extra = cx.edit.make_node("Neg", [model.graph[4].outputs[0]], name="extra")
        cx.edit.insert_after(model.graph[4], [extra])
        before = Snapshot.of(cx)
        cx.edit.remove(extra)
        assert _names(before.changed_nodes(cx)) == {"n3", "n4", "n5", "n6"}


@pytest.mark.parametrize("edit", ["resync", "declare", "many"])
def test_edits_that_may_concern_all_nodes(edit: str) -> None:
    model = _chain(20)
    with context_for(model) as cx:
        before = Snapshot.of(cx)
        match edit:
            case "resync":
                cx.edit.resync("test")
            case "declare":
                cx.edit.declare(model.graph[3].outputs[0], ir.DataType.FLOAT, [4])
            case "many":
                for count in range(5000):
                    cx.edit.set_attribute(model.graph[10], "note", count)
        assert before.changed_nodes(cx) is None
        assert Snapshot.of(cx).changed_nodes(cx) == frozenset()


def test_more_precise_facts_concern_all_nodes() -> None:
    model = _chain(20)
    with context_for(model) as cx:
        before = Snapshot.of(cx)
        cx.facts.assume_like(model.graph[3].outputs[0], model.graph.inputs[0])
        assert before.changed_nodes(cx) is None


@pytest.mark.parametrize("count", [2, 3])
def test_remaining_readers_of_an_input_are_visited_again(count: int) -> None:
    inner = " ".join(f"y{i} = Neg(x)" for i in range(count))
    rest = " ".join(f"z{i} = Exp(z{i - 1})" for i in range(1, 40))
    outputs = ", ".join([*(f"y{i}" for i in range(count)), "z39"])
    model = parse(f"g (float[N] x, float[N] w, float[N] z0) => ({outputs}) {{ {inner} {rest} }}")
    with context_for(model) as cx:
        before = Snapshot.of(cx)
        first, *others = [node for node in model.graph if node.op_type == "Neg"]
        cx.edit.set_input(first, 0, model.graph.inputs[1])
        visited = before.changed_nodes(cx)
    assert visited is not None and {first, *others} <= visited


def test_an_identity_of_an_output_is_logged() -> None:
    model = parse("g (float[N] x) => (y, z) { y = Neg(x) z = Abs(x) }")
    with context_for(model) as cx:
        position = cx.edit.log.position
        cx.edit.replace(model.graph.outputs[0], model.graph.inputs[0])
        changes = cx.edit.log.since(position)
    assert changes is not None and [node.op_type for node in changes.nodes] == ["Identity"]


#: Names of the constants of modules with rules that limit a search, in nodes.
_LIMIT_OF_SEARCH = re.compile(r"_?([A-Z]+_)*(DEPTH|DISTANCE|FAR|NODES)")
#: Nodes that a search inspects beyond its limit: producers of the last operands, and their operands.
_BEYOND = 2


def _depth(pattern: OpPattern) -> int:
    return 1 + max(map(_depth, pattern.below), default=0)


def _search_limits() -> dict[str, int]:
    """The limits of searches that rules start at nodes of their patterns."""
    names = [f"{rules.__name__}.{found.name}" for found in pkgutil.walk_packages(rules.__path__)]
    names += [
        found.name
        for found in pkgutil.walk_packages(building_blocks.__path__, f"{building_blocks.__name__}.")
    ]
    return {
        f"{name}.{constant}": value
        for name in names
        for constant, value in vars(importlib.import_module(name)).items()
        if isinstance(value, int) and _LIMIT_OF_SEARCH.fullmatch(constant)
    }


def _longest_inspection() -> int:
    revisited = {kind.name for kind in registry().passes.values() if kind.revisits_changes}
    patterns = [pattern for rule in all_rules() if rule.pass_ in revisited for pattern, _ in rule.patterns]
    return max(map(_depth, patterns)) + max(_search_limits().values()) + _BEYOND


def test_distance_exceeds_the_inspections_of_all_rules() -> None:
    limits = {name.rpartition("building_blocks.")[2]: limit for name, limit in _search_limits().items()}
    assert {"transpose_region._MAX_NODES", "attention.causal_masks._MAX_DEPTH"} <= limits.keys()
    assert _longest_inspection() < changed_neighborhood._MAX_DISTANCE


def test_change_at_the_longest_inspection_revisits_the_root() -> None:
    distance, model = _longest_inspection(), _chain(500)
    with context_for(model) as cx:
        before = Snapshot.of(cx)
        cx.edit.set_attribute(model.graph[0], "note", 1)
        changed = _names(before.changed_nodes(cx))
    assert changed is not None and f"n{distance}" in changed and "n250" not in changed
