"""Provenance: origins, absorbed nodes, and derivations in order."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.ir import provenance
from tests.ort.build import parse

TEXT = "g (float[4] x) => (float[4] y) { [one] a = Neg(x) [two] b = Abs(a) [three] c = Exp(b) [four] y = Neg(c) }"


def test_derivations_are_merged_in_order() -> None:
    model = parse(TEXT)
    one, two, three, four = model.graph
    edit = ir.Editor(model)
    edit.stage = "first"
    edit.note_origin([two], [one, two], "fuse")
    edit.stage = "second"
    edit.note_origin([three], [three], "split")
    edit.note_origin([four], [three, two, four], "join")
    steps = [(step.stage, step.by) for step in ir.derivation_steps(four)]
    assert steps == [("first", "fuse"), ("second", "split"), ("second", "join")]
    assert [step.number for step in ir.derivation_steps(four)] == [1, 2, 3]
    assert ir.origins(four) == ("three", "one", "two", "four")
    assert ir.derivation_steps(one) == () and ir.origins(one) == ("one",)


def test_the_producer_of_a_replacement_absorbs_the_replaced_node() -> None:
    model = parse(TEXT)
    one, two, three, four = model.graph
    edit = ir.Editor(model)
    edit.stage, edit.actor = "peephole", "drop"
    edit.replace(two.outputs[0], one.outputs[0])
    edit.replace(three.outputs[0], one.outputs[0])
    assert ir.absorbed(one) == ("two", "three") and ir.origins(one) == ("one",)
    assert [(step.stage, step.by) for step in ir.derivation_steps(one)] == [("peephole", "drop")] * 2
    edit.note_origin([four], [one, four], "fuse")
    assert ir.origins(four) == ("one", "four") and ir.absorbed(four) == ("two", "three")


def test_known_origins_are_not_absorbed() -> None:
    model = parse(TEXT)
    one, two, *_ = model.graph
    edit = ir.Editor(model)
    edit.note_origin([two], [one, two], "fuse")
    edit.note_replaced(two.outputs[0], [one])
    assert ir.absorbed(two) == ()


def test_constants_have_the_nodes_that_are_folded_into_them() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) <float[2] v = {1, 2}> { [one] a = Neg(v) [two] b = Exp(a) y = Add(x, b) }"
    )
    one, two, _ = model.graph
    edit = ir.Editor(model)
    first = edit.constant(model.graph, ir.tensor([-1.0, -2.0]), "a_folded")
    edit.note_folding(first, one)
    edit.replace(one.outputs[0], first)
    second = edit.constant(model.graph, ir.tensor([0.5, 0.25]), "b_folded")
    edit.note_folding(second, two)
    assert ir.folded_from(first) == ("one",) and ir.folded_from(second) == ("one", "two")
    assert ir.folded_from(model.graph.initializers["v"]) == ()


def test_long_histories_are_cut() -> None:
    model = parse(TEXT)
    node, *_ = model.graph
    edit = ir.Editor(model)
    for number in range(provenance._KEPT_STEPS + 10):
        edit.note_origin([node], [node], f"rule{number}")
    steps = ir.derivation_steps(node)
    assert len(steps) == provenance._KEPT_STEPS and steps[-1].by == f"rule{provenance._KEPT_STEPS + 9}"


def test_names_of_any_characters_are_recorded() -> None:
    names = ["a\nb", "a\\nb", "\\", "\\\n", "n", "\n"]
    model = parse(TEXT)
    one, two, three, _ = model.graph
    provenance.record_origin(one, names)
    assert ir.origins(one) == tuple(names)
    provenance.absorb(two, one, "drop", "peephole", 1)
    assert ir.absorbed(two) == tuple(names)
    provenance.record_folding(three.outputs[0], one)
    assert ir.folded_from(three.outputs[0]) == tuple(names)


def test_created_constant_nodes_have_the_origin_of_their_readers() -> None:
    model = parse(TEXT)
    model.ir_version = 3  # constants are nodes
    edit = ir.Editor(model)
    first, second, third, _ = model.graph
    edit.constant(model.graph, np.ones(2, np.float32), "made")
    edit.note_origin([second], [first], "rule")
    edit.constant(model.graph, np.ones(3, np.float32), "other")
    edit.end_rewrite()
    edit.note_origin([third], [first], "rule")
    nodes = {ir.label(node): node for node in model.graph}
    assert ir.origins(nodes["made"]) == ir.origins(first) and ir.origins(nodes["other"]) == ("other",)
    folded = edit.constant(model.graph, np.ones(4, np.float32), "folded")
    edit.note_folding(folded, first)
    producer = folded.producer()
    assert producer is not None and ir.origins(producer) == ir.origins(first) == ir.folded_from(folded)
