"""Each rule alone rewrites its cases as stated, preserves results, and does not change near misses."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from graphopt.numerics import Numerics
from graphopt.process.child import Child
from tests.rules import rule_cases


@pytest.mark.parametrize("path", rule_cases.case_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path: Path, child: Child) -> None:
    case = rule_cases.read_case(path)
    rules = rule_cases.rules_by_name()
    header = re.findall(r"^# (dialect|near-miss): ", path.read_text(), re.M)
    assert all((told == "near-miss") == (case.after is None) for told in header)
    assert case.rule in rules, f"no rule is called {case.rule}"
    after, rewrites, refusals = rule_cases.apply_rule(
        case.before, case.rule, portable=case.portable, device=case.device, numerics=case.numerics
    )
    why = "\n".join(refusals)
    expected = case.before if case.after is None else case.after
    assert rule_cases.canonical(after) == rule_cases.canonical(expected), (
        f"got:\n{rule_cases.show(after)}\n{why}"
    )
    assert (rewrites == 0) == (case.after is None), f"{rewrites} rewrites"
    if case.after is None:
        assert bool(case.refused) != case.unmatched, "say '# refused: WHY', or '# unmatched': " + why
        assert not (case.unmatched and refusals), why
        missing = [reason for reason in case.refused if not any(reason in told for told in refusals)]
        assert not missing, f"{missing} is not among the refusals:\n{why}"
    if rule_cases.is_defined(after):
        onnx.checker.check_model(after, full_check=False)
    if rewrites:
        _, again, _ = rule_cases.apply_rule(after, case.rule)
        assert again == 0, "the rule applies to its own result"
        rule_cases.judge(case, after, rules[case.rule].numerics, child)


@pytest.mark.parametrize("path", rule_cases.case_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_all_rules_together_preserve_semantics(path: Path, child: Child) -> None:
    case = rule_cases.read_case(path)
    after = rule_cases.optimize(case.before)
    most = rule_cases.count_nodes(case.before)
    if case.after is not None and rule_cases.rules_by_name()[case.rule].pass_ == "decompose":
        most = max(most, rule_cases.count_nodes(case.after))
    assert rule_cases.count_nodes(after) <= most, rule_cases.show(after)
    if not rule_cases.is_random(path):
        rule_cases.judge(case, after, Numerics.REASSOCIATES, child)


def test_every_rule_has_a_positive_and_a_near_miss_case() -> None:
    seen = {(rule_cases.rule_of(path), rule_cases.is_near_miss(path)) for path in rule_cases.case_files()}
    names = list(rule_cases.rules_by_name())
    assert [name for name in names if (name, False) not in seen] == [], "rules without a positive case"
    assert [name for name in names if (name, True) not in seen] == [], "rules without a near miss"
