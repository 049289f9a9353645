"""Estimated numbers of executed nodes."""

from __future__ import annotations

import pytest

from graphopt.profile import Guard
from graphopt.specialization.profitability import executed_nodes
from tests.model_testing import parse

OUTER = '<domain: "d", opset_import: ["" : 17, "d" : 1]> f (a) => (c) { b = d.h(a) t = d.h(b) c = Neg(t) }'
INNER = '<domain: "d", opset_import: ["" : 17]> h (a) => (c) { b = Exp(a) c = Sqrt(b) }'


@pytest.mark.parametrize("functions", [[OUTER, INNER], [INNER, OUTER]])
def test_nodes_of_nested_functions_count_in_any_order_of_declaration(functions: list[str]) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17, "d" : 1]>'
    model = parse(
        f"{header} g (float[N] x) => (float[N] y) {{ z = d.f(x) y = Neg(z) }} {' '.join(functions)}"
    )
    assert executed_nodes(model, Guard()) == 6
