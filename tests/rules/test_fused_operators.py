"""Fusion rules mark the fused operator that they write."""

from __future__ import annotations

from graphopt.rules import all_rules
from tests.rules import rule_cases

#: Fusion rules that write no fused operator: some create forms that onnxruntime fuses, one reads an existing operator.
WRITE_NONE = {
    "layer-norm-spelling",
    "layer-norm-spelling-by-batch-norm",
    "norm-of-skip-norm",
}


def test_fusion_rules_mark_their_fused_operator() -> None:
    fuse = {rule.name for rule in all_rules() if rule.is_fusion}
    counts: dict[str, set[int]] = {name: set() for name in fuse}
    for path in rule_cases.case_files():
        if rule_cases.rule_of(path) in fuse and not rule_cases.is_near_miss(path):
            case = rule_cases.read_case(path)
            counts[case.rule].add(len(rule_cases.fused_in(case)))
    silent = {name for name, found in counts.items() if 0 in found}
    assert silent == WRITE_NONE
