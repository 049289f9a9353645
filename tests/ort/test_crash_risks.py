"""Models that may crash the process or diverge."""

from __future__ import annotations

import pytest

from graphopt.ort.crash_risks import crash_risk, divergence_risk
from tests.model_testing import parse

BODY = "<body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) { d = Identity(c) u = Sin(v) }>"
NESTED = (
    "<body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) { d = Identity(c) u = Loop(n, d, v)"
    "<body = e (int64 j, bool f, float[2] w) => (bool h, float[2] r) { h = Identity(f) r = Sin(w) }> }>"
)


@pytest.mark.parametrize(
    ("trips", "body", "ends"),
    [("3", BODY, True), ("9223372036854775807", BODY, False), ("50", NESTED, True), ("5000", NESTED, False)],
)
def test_loops_with_many_iterations_may_diverge(trips: str, body: str, ends: bool) -> None:
    model = parse(
        f"g (float[2] x, bool t) => (float[2] y) <int64 n = {{{trips}}}> {{ y = Loop(n, t, x){body} }}"
    )
    assert (divergence_risk(model) is None) is ends
    assert crash_risk(model) == "Loop(y) may accumulate more than fits into memory"


def test_loops_with_computed_iterations_may_diverge() -> None:
    model = parse(f"g (float[2] x, int64 n, bool t) => (float[2] y) {{ y = Loop(n, t, x){BODY} }}")
    assert divergence_risk(model) == "Loop(y) may run forever"
    assert divergence_risk(parse("g (float[2] x) => (float[2] y) { y = Sin(x) }")) is None


def test_functions_that_are_huge_when_inlined() -> None:
    domain = '<domain: "l", opset_import: ["" : 17, "l" : 1]>'
    functions = f"{domain} f0 (v) => (w) {{ w = Neg(v) }} " + " ".join(
        f"{domain} f{i} (v) => (w) {{ a = l.f{i - 1}(v) w = l.f{i - 1}(a) }}" for i in range(1, 60)
    )
    head = '<ir_version: 9, opset_import: ["" : 17, "l" : 1]>'
    for deepest, ends in ((10, True), (59, False)):
        model = parse(f"{head} g (float[2] x) => (float[2] y) {{ y = l.f{deepest}(x) }} {functions}")
        assert (divergence_risk(model) is None) is ends


def test_empty_scans_and_values_moved_into_bodies_are_risks() -> None:
    """onnxruntime 1.31 divides by zero at the first, and creates no default session of the second."""
    scan = "Scan<num_scan_inputs = 1{}, body = b (float[2] s, float v) => (float[2] t, float w) {{ t = Identity(s) w = Neg(v) }}>(s, x)"
    for axes, risky in (("", False), (", scan_input_axes = [1]", True)):
        model = parse(f"g (float[N, N] x, float[2] s) => (float[2] y, z) {{ y, z = {scan.format(axes)} }}")
        assert (crash_risk(model) is not None) is risky
    plain = "d = DequantizeLinear(x, k) y = Transpose(d)"
    inside = "d = DequantizeLinear(x, k) p = Transpose(d) y = If(c)<then_branch = t () => (float[A] a) { a = Exp(p) }, else_branch = e () => (float[A] b) { b = Neg(p) }>"
    for steps, risky in ((plain, False), (inside, True)):
        model = parse(f"g (uint8[A] x, bool c) => (float[A] y) <float k = {{1}}> {{ {steps} }}")
        assert (crash_risk(model) is not None) is risky
