"""Rules rewrite branches, loops and functions like the main graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from graphopt import ir
from graphopt.process.child import Child
from tests.rules import nested_cases, rule_cases

#: Cases that are about the main graph alone, and why.
_ELSEWHERE = {"gemm-without-reshapes-transposed": "both branches read the weight that would be transposed"}

#: onnxruntime crashes when it loads a function with this operator.
_NOT_IN_FUNCTIONS = "SimplifiedLayerNormalization"


def _positive() -> list[Path]:
    return [path for path in rule_cases.case_files() if not rule_cases.is_near_miss(path)]


@pytest.mark.parametrize("path", _positive(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_rules_apply_inside(path: Path) -> None:
    case = rule_cases.read_case(path)
    assert case.after is not None
    nodes = case.before.graph.node
    if case.before.functions or any(a.type == onnx.AttributeProto.GRAPH for n in nodes for a in n.attribute):
        return  # nested already
    before = [node.op_type for node in nodes]
    expected = sorted(node.op_type for node in case.after.graph.node if node.op_type != "Constant")
    for wrap in (nested_cases.in_branch, nested_cases.in_loop, nested_cases.in_function):
        if wrap is nested_cases.in_branch and path.stem in _ELSEWHERE:
            continue
        after, rewrites, refusals = rule_cases.apply_rule(
            wrap(case.before), case.rule, numerics=case.numerics, portable=case.portable, device=case.device
        )
        if (
            wrap is nested_cases.in_function
            and _NOT_IN_FUNCTIONS in expected
            and _NOT_IN_FUNCTIONS not in before
        ):
            assert not rewrites and "inside functions" in str(refusals)
            continue
        assert rewrites and nested_cases.inner_nodes(after) == expected, f"{wrap.__name__}: {refusals}"
        ir.from_proto(after)  # checks scopes, types and links


@pytest.mark.parametrize("path", _positive(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_attributes_of_the_call_are_not_guessed(path: Path, child: Child) -> None:
    """If attributes are parameters of a function, a rule refuses, or is correct for the attributes of the call."""
    case = rule_cases.read_case(path)
    nodes = case.before.graph.node
    if case.before.functions or any(a.type == onnx.AttributeProto.GRAPH for n in nodes for a in n.attribute):
        return
    before = nested_cases.in_function_with_parameters(case.before)
    if before is None:
        return
    after, rewrites, _ = rule_cases.apply_rule(before, case.rule, portable=case.portable, device=case.device)
    if rewrites:  # onnxruntime itself crashes on some of these calls
        before, after = rule_cases.inline(before), rule_cases.inline(after)
        rule_cases.judge(
            replace(case, before=before), after, rule_cases.rules_by_name()[case.rule].numerics, child
        )
