"""Both versions of guarded groups are compared, even if the inputs of the comparison reach only one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import graphopt
from graphopt import ir
from graphopt.context import Context
from graphopt.errors import VerificationFailed
from graphopt.inputs.feeds import InputOptions
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate
from tests.transforms.guarded_models import (
    growing_rows,
    rows_with,
    selected_and_growing_rows,
    selected_rows,
)

#: More rows than in the inputs of a comparison.
MANY = 97


@dataclass(frozen=True)
class NegateBranch(Pass):
    """Negate the results of one branch of each guarded group."""

    branch: str = "then_branch"

    name: ClassVar[str] = "negate-branch"

    def run(self, model: ir.Model, cx: Context) -> None:
        for node in model.graph:
            if graphopt_operators.guarded_branch(node) is None or cx.begin_rewrite(self.name, node) is None:
                continue
            body = node.attributes[self.branch].as_graph()
            negated = cx.edit.make_node("Neg", [body.outputs[0]], name="negated")
            cx.edit.append(body, negated)
            cx.edit.set_outputs(body, list(negated.outputs))


def _selected(rows: int = MANY) -> ir.Model:
    model = selected_rows()
    annotate(model, {"found": ValueProfile("tensor(int64)", (1, rows))})
    return model


def test_versions_that_agree_are_counted() -> None:
    verdict = graphopt.optimize(_selected(), pipeline="guard-groups,lower-fallbacks").verdict
    assert verdict is not None and verdict.ok and len(verdict.general_rows) == len(verdict.rows)
    (group,) = verdict.groups
    assert group.group == "psum" and group.comparisons > 5 and group.reason is None
    assert "1 of 1 guarded group compared in both versions" in verdict.summary()
    assert verdict.to_dict()["groups"][0]["group"] == "psum"


def test_groups_in_bodies_of_specialized_versions_are_compared() -> None:
    model = selected_and_growing_rows()
    seen = {"found": ValueProfile("tensor(int64)", (1, 3)), "state": ValueProfile("tensor(float)", (4, 2))}
    annotate(model, seen)
    verdict = graphopt.optimize(model, pipeline="guard-groups{cost=0},lower-fallbacks,dce").verdict
    assert verdict is not None and [(one.group, one.reason) for one in verdict.groups] == [
        ("grown", None),
        ("psum_special", None),
    ]


def test_groups_of_loops_are_compared() -> None:
    model = growing_rows()
    annotate(model, {"state": ValueProfile("tensor(float)", (4, 2))})
    verdict = graphopt.optimize(model, pipeline="guard-groups,lower-fallbacks").verdict
    assert verdict is not None and [one.reason for one in verdict.groups] == [None]


def test_a_wrong_specialized_version_is_found_and_dropped() -> None:
    pipeline = ["guard-groups", NegateBranch(), "lower-fallbacks"]
    with pytest.raises(VerificationFailed, match="the guarded group of psum: output 'psum"):
        graphopt.optimize(_selected(), pipeline=pipeline, strict=True)
    report = graphopt.optimize(_selected(), pipeline=pipeline).report
    assert report.dropped and report.verdict is not None and report.verdict.ok


def test_a_wrong_general_version_is_found() -> None:
    pipeline = ["guard-groups", NegateBranch("else_branch"), "lower-fallbacks"]
    inputs = InputOptions(arrays={"x": rows_with(3)})  # only the specialized version runs
    with pytest.raises(VerificationFailed, match="with the general versions of guarded groups, output 'y'"):
        graphopt.optimize(_selected(3), pipeline=pipeline, strict=True, inputs=inputs)


@dataclass(frozen=True)
class CopyChecked(Pass):
    """Replace the values that checks read by copies."""

    name: ClassVar[str] = "copy-checked"

    def run(self, model: ir.Model, cx: Context) -> None:
        for check in graphopt_operators.type_checks_of(model):
            value = check.inputs[0]
            assert value is not None
            copied = cx.edit.make_node("Identity", [value], name="copied")
            cx.edit.insert_before(check, [copied])
            for use in list(value.uses()):
                if use.node is not copied:
                    cx.edit.set_input(use.node, use.idx, copied.outputs[0])


def test_groups_with_replaced_inputs_are_not_compared() -> None:
    verdict = graphopt.optimize(
        _selected(), pipeline=["guard-groups", CopyChecked(), "lower-fallbacks"]
    ).verdict
    assert verdict is not None and verdict.ok
    (group,) = verdict.groups
    assert group.reason is not None and "was replaced after the group was guarded" in group.reason
    assert "0 of 1 guarded group compared in both versions" in verdict.summary()
