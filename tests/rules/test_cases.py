"""Each rule alone rewrites its cases as stated, preserves results, and does not change near misses."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from graphopt.numerics import Numerics
from graphopt.process.child import Child
from tests.rules import harness


@pytest.mark.parametrize("path", harness.case_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path: Path, child: Child) -> None:
    case = harness.read_case(path)
    rules = harness.rules_by_name()
    header = re.findall(r"^# (dialect|near-miss): ", path.read_text(), re.M)
    assert all((told == "near-miss") == (case.after is None) for told in header)
    assert case.rule in rules, f"no rule is called {case.rule}"
    after, rewrites, refusals = harness.apply_rule(
        case.before, case.rule, portable=case.portable, device=case.device, numerics=case.numerics
    )
    why = "\n".join(refusals)
    expected = case.before if case.after is None else case.after
    assert harness.canonical(after) == harness.canonical(expected), f"got:\n{harness.show(after)}\n{why}"
    assert (rewrites == 0) == (case.after is None), f"{rewrites} rewrites"
    if case.after is None:
        assert bool(case.refused) != case.unmatched, "say '# refused: WHY', or '# unmatched': " + why
        assert not (case.unmatched and refusals), why
        missing = [reason for reason in case.refused if not any(reason in told for told in refusals)]
        assert not missing, f"{missing} is not among the refusals:\n{why}"
    if harness.is_defined(after):
        onnx.checker.check_model(after, full_check=False)
    if rewrites:
        _, again, _ = harness.apply_rule(after, case.rule)
        assert again == 0, "the rule applies to its own result"
        harness.judge(case, after, rules[case.rule].numerics, child)


@pytest.mark.parametrize("path", harness.case_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_all_rules_together_preserve_semantics(path: Path, child: Child) -> None:
    case = harness.read_case(path)
    after = harness.optimize(case.before)
    assert harness.count_nodes(after) <= harness.count_nodes(case.before), harness.show(after)
    if not harness.is_random(path):
        harness.judge(case, after, Numerics.REASSOCIATES, child)


def test_every_rule_has_a_positive_and_a_near_miss_case() -> None:
    seen = {(harness.rule_of(path), harness.is_near_miss(path)) for path in harness.case_files()}
    names = list(harness.rules_by_name())
    assert [name for name in names if (name, False) not in seen] == [], "rules without a positive case"
    assert [name for name in names if (name, True) not in seen] == [], "rules without a near miss"
