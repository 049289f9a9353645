"""Names of changed groups: kernels are selected by name."""

from __future__ import annotations

import pytest

from graphopt import api, ir
from graphopt.fusion.group_functions import groups_of
from graphopt.ops import graphopt_operators
from tests.fusion.models import TWO, grouped

#: A product with one, which passes remove.
IDLE = TWO.replace("t = Sin(p)", "r = Sin(p) t = Mul(r, one)").replace("y) {", "y) <float one = {1.0}> {")

#: Two groups of the same types.
SIBLINGS = """siblings (float[128,64] x, float[64,64] w) => (float[128,64] y) {
    s = Tanh(x)
    m = Mul(x, s)
    p = MatMul(m, w)
    t = Tanh(p)
    y = Sub(p, t)
}"""


def names(model: ir.Model) -> list[str]:
    return sorted(key[1] for key in model.functions)


@pytest.mark.parametrize("pipeline", ["O1", "O2", "O3", "native", "peephole"])
def test_changed_group_is_renamed_and_has_a_kernel(pipeline: str) -> None:
    model = grouped(IDLE)
    same, changed = sorted(names(model), key=lambda name: name.startswith("mat_mul"))
    found, report = api.optimize(model, pipeline=pipeline)
    assert len(names(found)) == 2 and same in names(found) and changed not in names(found)
    assert all(group.kernel is not None for group in groups_of(found))
    assert sorted(
        node.op_type for node in found.graph if node.domain == graphopt_operators.NATIVE_DOMAIN
    ) == names(found)
    assert pipeline == "native" or "1 native group changed and renamed" in list(report.notes())
    again, report = api.optimize(found, pipeline=pipeline)
    assert names(again) == names(found) and not any("renamed" in note for note in report.notes())


def test_manually_changed_group_is_renamed() -> None:
    model = grouped()
    before = names(model)
    (function, *_) = model.functions.values()
    next(node for node in function if node.op_type == "Mul").op_type = "Sub"
    found, _ = api.optimize(model, pipeline="O0")
    assert len(set(before) & set(names(found))) == 1
    assert all(group.kernel is not None for group in groups_of(found))


def test_groups_that_become_equal_are_merged() -> None:
    text = """g (float[128,64] x, float[64,64] w, float[64] b) => (float[128,64] y) <float one = {1.0}> {
        s = Sin(x) i = Mul(s, one) m = Mul(i, b) p = MatMul(m, w) t = Sin(p) y = Mul(t, b)
    }"""
    model = grouped(text)
    assert len(names(model)) == 2
    found, _ = api.optimize(model, pipeline="peephole")
    assert len(names(found)) == 1
    assert sum(node.domain == graphopt_operators.NATIVE_DOMAIN for node in found.graph) == 2


def test_opset_conversion_keeps_kernels() -> None:
    model = grouped()
    found, _ = api.optimize(model, pipeline="O0", target_opset=model.graph.opset_imports[""] - 1)
    assert names(found) != names(model)
    assert all(group.kernel is not None for group in groups_of(found))


def test_groups_may_exchange_contents() -> None:
    """Manually exchanged bodies: each group requires the name that the other still has."""
    model = grouped(SIBLINGS)
    before = names(model)
    one, other = model.functions.values()
    for function, op in ((one, "Sub"), (other, "Mul")):
        next(node for node in function if node.op_type in ("Mul", "Sub")).op_type = op
    expected = {node.name: node.op_type for node in model.graph}
    found, _ = api.optimize(model, pipeline="O0")
    assert names(found) == before and all(group.kernel is not None for group in groups_of(found))
    assert {node.name: node.op_type for node in found.graph} != expected
    assert api.verify(model, found, libraries=()).ok
