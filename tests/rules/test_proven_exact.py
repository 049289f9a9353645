"""Rules and passes that are declared as proven exact add no computations, and preserve every bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.ops import traits
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.rewrite import Rule
from graphopt.verification.output_comparison import identical
from tests.rules import rule_cases

#: Operators that compute no floats: they move elements, or return shapes and constants.
_MOVES = {*traits.MOVES, *traits.VIEW, "Constant", "ConstantOfShape", "Identity", "Shape", "Size", "Split"}
#: Operators that a rule may write, because their results are equal by definition: a sum of two operands, the
#: exclusive or with true, and a conversion to a known type.
_SAME = {"sum-to-add": {"Add"}, "drop-neutral-condition": {"Not"}, "cast-like-to-cast": {"Cast"}}
#: Number of models that each pass changes.
_MODELS = 12
_FILLS = ("normal", "zero", "negative", "large", "special")


def proven_rules() -> list[Rule]:
    return [rule for rule in rule_cases.rules_by_name().values() if rule.proven_exact]


def cases() -> list[Path]:
    names = {rule.name for rule in proven_rules()}
    return [
        path
        for path in rule_cases.case_files()
        if rule_cases.rule_of(path) in names and not rule_cases.is_near_miss(path)
    ]


def computing(proto: onnx.ModelProto) -> Counter[str]:
    """The operators of ``proto`` that compute floats, or anything else from their elements."""
    model = ir.from_proto(proto)
    with rule_cases.context_for(model) as cx:
        return Counter(
            node.op_type
            for graph in ir.graphs_of(model)
            for node in graph
            if node.op_type not in _MOVES
            and not all(cx.dtype(value) in (ir.DataType.INT64, ir.DataType.INT32) for value in node.outputs)
        )


def test_proven_rules_are_exact() -> None:
    assert len(proven_rules()) > 40
    assert [rule.name for rule in proven_rules() if rule.numerics is not Numerics.EXACT] == []


@pytest.mark.parametrize("path", cases(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_result_has_the_same_bits_for_all_kinds_of_values(path: Path) -> None:
    case = rule_cases.read_case(path)
    after, rewrites, _ = rule_cases.apply_rule(
        case.before, case.rule, portable=case.portable, device=case.device, numerics=case.numerics
    )
    new = computing(after) - computing(case.before)
    assert rewrites and set(new) <= _SAME.get(case.rule, set()), f"adds {dict(new)}"
    assert_same_bits(case, after)


#: Groups of operators that take the same operands.
_ALTERNATIVES = (
    tuple(sorted(traits.UNARY_ELEMENTWISE - {"Cast", "Clip"})),
    tuple(sorted(traits.BINARY_ELEMENTWISE | {"Max", "Min", "Mean", "Sum"})),
    traits.REDUCTIONS,
    ("ArgMax", "ArgMin"),
)
#: Sizes whose last elements do not fill a vector register.
_TAILS = ((1, 5, 17), (3, 5, 7), (5, 7, 3), (17, 3, 5))


def variants(path: Path) -> list[rule_cases.Case]:
    """The case with each alternative of each of its operators."""
    case = rule_cases.read_case(path)
    found = []
    for index, node in enumerate(case.before.graph.node):
        for group in _ALTERNATIVES:
            for op_type in group if node.op_type in group and not node.domain else ():
                before = onnx.ModelProto()
                before.CopyFrom(case.before)
                before.graph.node[index].op_type = op_type
                found.append(replace(case, before=before))
    return found


def tails_of(case: rule_cases.Case) -> list[dict[str, int]]:
    names = list(next(iter(rule_cases.bindings_of(case))))
    return [dict(zip(names, (*sizes, 2, 2, 2, 2), strict=False)) for sizes in _TAILS] if names else [{}]


@pytest.mark.parametrize(
    "path", [path for path in cases() if variants(path)], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_alternative_operators_preserve_every_bit(path: Path) -> None:
    ran = 0
    for case in variants(path):
        try:
            after, rewrites, _ = rule_cases.apply_rule(case.before, case.rule, numerics=case.numerics)
            expected = rule_cases.Runtime(case.before, "off")._session
        except Exception:  # the operator does not support the types
            continue
        if rewrites and expected:
            ran += assert_same_bits(case, after, bindings=tails_of(case), fills=("normal", "special"))
    assert ran


def assert_same_bits(
    case: rule_cases.Case,
    after: onnx.ModelProto,
    bindings: Iterable[dict[str, int]] = (),
    fills: Sequence[str] = _FILLS,
) -> int:
    """Assert that ``after`` returns the bits of the case's model for all kinds of values and sizes."""
    models = [rule_cases.Runtime(model, "off") for model in (case.before, after)]
    ran = 0
    for sizes in bindings or rule_cases.bindings_of(case):
        for fill in fills:
            feeds = rule_cases.make_feeds(case, sizes, fill)
            try:
                expected = models[0].run(feeds)
            except Exception:  # the model rejects these inputs
                continue
            ran += 1
            for a, b in zip(expected, models[1].run(feeds), strict=True):
                assert identical(a, b), f"{sizes}, {fill} numbers:\n{a}\nbecame\n{b}"
    assert ran or bindings
    return ran


def proven_passes() -> list[str]:
    """The proven passes, except the one that only applies rules."""
    passes = registry().passes.values()
    return [one.name for one in passes if one.proven_exact and one.name != "peephole"]


@pytest.mark.parametrize("name", proven_passes())
def test_passes_preserve_every_bit_for_all_kinds_of_values(name: str) -> None:
    changed = 0
    for path in rule_cases.case_files():
        if rule_cases.is_random(path):
            continue
        case = rule_cases.read_case(path)
        model = ir.from_proto(onnx.ModelProto.FromString(case.before.SerializeToString()))
        with rule_cases.context_for(model) as cx:
            start = cx.edit.epoch
            Pipeline.parse(name, registry()).run(model, cx)
            if cx.edit.epoch == start:
                continue
        changed += 1
        assert_same_bits(case, ir.to_proto(model))
        if changed == _MODELS:
            return
    assert changed
