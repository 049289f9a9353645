"""Every refusal reason of a fusion rule is covered by a near miss."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphopt.rules
from graphopt.rules import all_rules
from tests.rules import rule_cases

RULES = Path(graphopt.rules.__file__).parent
#: Helpers of fusion rules, whose refusal reasons count as the rules' own.
SHARED = ("attention/*", "operands", "norms", "rotary_tables", "ort_fusions")


def _files() -> list[Path]:
    families = {rule.family for rule in all_rules() if rule.is_fusion}
    shared = [path for name in SHARED for path in RULES.glob(f"building_blocks/{name}.py")]
    return sorted({*(RULES / f"{family}.py" for family in families), *shared})


def _texts() -> dict[str, str]:
    """The named texts in files of rules, by name."""
    found = {}
    for path in RULES.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                found |= {
                    target.id: str(node.value.value)
                    for target in node.targets
                    if isinstance(target, ast.Name)
                }
    return found


def _pattern(reason: ast.expr, texts: dict[str, str]) -> Iterator[str]:
    """Regular expressions for the possible texts of ``reason``; none if the text is defined elsewhere."""
    match reason:
        case ast.Constant(value=str(text)):
            yield re.escape(text)
        case ast.JoinedStr(values=parts):
            yield "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in texts:
            yield re.escape(texts[name])
        case ast.IfExp(body=one, orelse=other):
            yield from _pattern(one, texts)
            yield from _pattern(other, texts)


def answers() -> dict[str, str]:
    """The refusals of fusion rules, and their positions, by regular expression."""
    texts, found = _texts(), {}
    for path in _files():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr
                in (
                    "no",
                    "refuse",
                )
            ):
                for pattern in _pattern(node.args[0], texts):
                    found.setdefault(pattern, f"{path.stem}.py:{node.lineno}")
    return found


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """The reasons of the near misses."""
    return {
        reason
        for path in rule_cases.case_files()
        for reason in re.findall(r"^# refused: (.*)$", path.read_text(), re.M)
    }


def test_each_refusal_has_a_near_miss(shown: set[str]) -> None:
    found = answers()
    assert len(found) > 100
    missing = [
        f"{place}: {pattern}"
        for pattern, place in found.items()
        if not any(re.fullmatch(pattern, reason) for reason in shown)
    ]
    assert missing == []
