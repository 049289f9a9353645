"""pad-mm: matrix products are padded to multiples for tensor cores, where that is faster."""

from __future__ import annotations

import math

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Options
from graphopt.numerics import Numerics
from graphopt.ort.devices import Device
from tests.model_testing import ops, parse, run_pipeline

ALWAYS = "pad-mm{always}"
CUDA = Options(device=Device("cuda"))


def numbers(dtype: str = "float", **shapes: tuple[int, ...]) -> str:
    """Declarations of initializers with arbitrary numbers."""
    random = np.random.default_rng(0)
    return ", ".join(
        f"{dtype}[{','.join(map(str, shape))}] {name} = "
        f"{{{', '.join(_text(number, dtype) for number in random.standard_normal(math.prod(shape)))}}}"
        for name, shape in shapes.items()
    )


def _text(number: float, dtype: str) -> str:
    """``number``; as bits for float16, as in ONNX text."""
    return str(int(np.float16(number).view(np.uint16))) if dtype == "float16" else f"{number:.3f}"


def padded(model: ir.Model, text: str = ALWAYS) -> ir.Model:
    """``model`` after the pass, which is verified."""
    return graphopt.optimize(model, pipeline=text, device="cpu", strict=True, require_verified=True).model


def weights(model: ir.Model) -> list[tuple[int, ...]]:
    return [
        tuple(value.const_value.shape.numpy())
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype.is_floating_point()
    ]


def refusals(model: ir.Model, text: str = ALWAYS) -> list[str]:
    report = graphopt.optimize(model, pipeline=text, device="cpu", verify=False).report
    return [item.reason for item in report.refusals if item.rule == "pad-mm"]


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 17, 23])
def test_matmul_with_a_weight(opset: int) -> None:
    text = f"g (float[N,S,7] x) => (float[N,S,9] y) <{numbers(w=(7, 9))}> {{ y = MatMul(x, w) }}"
    result = padded(parse(text, opset=opset))
    assert ops(result) == ["Pad", "MatMul", "Slice"]
    assert weights(result) == [(8, 12)]
    assert [value.name for value in result.graph.outputs] == ["y"]


def test_only_unaligned_dims_are_padded() -> None:
    text = f"g (float[N,7] x) => (float[N,12] y) <{numbers(w=(7, 12))}> {{ y = MatMul(x, w) }}"
    assert ops(padded(parse(text))) == ["Pad", "MatMul"]
    text = f"g (float[N,8] x) => (float[N,9] y) <{numbers(w=(8, 9))}> {{ y = MatMul(x, w) }}"
    assert ops(padded(parse(text))) == ["MatMul", "Slice"]
    text = f"g (float[N,8] x) => (float[N,12] y) <{numbers(w=(8, 12))}> {{ y = MatMul(x, w) }}"
    assert ops(padded(parse(text))) == ["MatMul"]


def test_batches_of_computed_matrices() -> None:
    result = padded(
        parse("g (float[B,H,S,5] q, float[B,H,5,7] k) => (float[B,H,S,7] y) { y = MatMul(q, k) }")
    )
    assert ops(result) == ["Pad", "Pad", "MatMul", "Slice"]


def test_batches_are_broadcast() -> None:
    result = padded(
        parse(f"g (float[N,3,5] x) => (float[N,3,6] y) <{numbers(w=(1, 5, 6))}> {{ y = MatMul(x, w) }}")
    )
    assert weights(result) == [(1, 8, 8)]


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("bias", [(10,), (1, 10), (6, 10), (6, 1), (1,), None])
def test_gemm(left: int, right: int, bias: tuple[int, ...] | None) -> None:
    x = "float[5,6] x" if left else "float[6,5] x"
    w = (10, 5) if right else (5, 10)
    declared = numbers(w=w) if bias is None else numbers(w=w, c=bias)
    model = parse(
        f"""g ({x}) => (float[6,10] y) <{declared}> {{
            y = Gemm <alpha = 0.5, beta = 2.0, transA = {left}, transB = {right}> (x, w{"" if bias is None else ", c"})
        }}"""
    )
    result = padded(model)
    inner = 5 if left and not right else 8  # then no rows in memory have the length inner
    assert ((12, inner) if right else (inner, 12)) in weights(result)
    assert "Slice" in ops(result)


def test_computed_bias_of_gemm_is_padded() -> None:
    text = f"g (float[6,8] x, float[9] c) => (float[6,9] y) <{numbers(w=(8, 9))}> {{ y = Gemm(x, w, c) }}"
    assert ops(padded(parse(text))) == ["Pad", "Gemm", "Slice"]


def test_bias_of_unknown_shape_prevents_padding() -> None:
    text = f"g (float[6,8] x, float[C] c) => (float[6,9] y) <{numbers(w=(8, 9))}> {{ y = Gemm(x, w, c) }}"
    assert refusals(parse(text)) == ["the shape of the bias is unknown"]


def test_half_precision_has_multiples_of_eight() -> None:
    text = f"g (float16[N,12] x) => (float16[N,9] y) <{numbers('float16', w=(12, 9))}> {{ y = MatMul(x, w) }}"
    assert weights(padded(parse(text))) == [(16, 16)]


@pytest.mark.parametrize(("point", "count"), [("0", 1), ("3", 0)])
def test_integers_with_zero_points(point: str, count: int) -> None:
    weight = "{" + ", ".join(str(number % 9 - 4) for number in range(35)) + "}"
    model = parse(f"""g (int8[N,5] x) => (int32[N,7] y) <int8[5,7] w = {weight}, int8 p = {{{point}}}, int8 z = {{0}}> {{
        y = MatMulInteger(x, w, z, p)
    }}""")
    result = padded(model)
    assert ops(result).count("Slice") == count
    if not count:
        assert refusals(model) == ["a zero point is not zero"]


def test_fused_products_are_padded() -> None:
    model = parse(
        f"""g (float[N,3,6] x) => (float[N,3,5] y) <{numbers(w=(5, 6))}> {{
            y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, w)
        }}""",
        domains=', "com.microsoft" : 1',
    )
    result = padded(model)
    assert ops(result) == ["Pad", "FusedMatMul", "Slice"] and weights(result) == [(8, 8)]


def test_products_in_bodies_and_functions_are_padded() -> None:
    model = parse(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2,5] x, bool c) => (float[2,5] y) <{numbers(w=(5, 5))}> {{
            h = own.square(x, w)
            y = If (c) <then_branch = a () => (float[2,5] p) {{ p = MatMul(h, w) }},
                        else_branch = b () => (float[2,5] q) {{ q = Neg(h) }}>
        }}
        <opset_import: ["" : 17], domain: "own"> square (i, m) => (o) {{ o = MatMul(i, m) }}""")
    result = padded(model)
    inside = [node.op_type for graph in ir.graphs_of(result) for node in graph if graph is not result.graph]
    assert inside.count("Slice") == 2


def test_second_run_changes_nothing() -> None:
    model = parse(f"g (float[N,7] x) => (float[N,9] y) <{numbers(w=(7, 9))}> {{ y = MatMul(x, w) }}")
    run_pipeline(model, ALWAYS)
    data = ir.to_bytes(model)
    run_pipeline(model, ALWAYS)
    assert ir.to_bytes(model) == data


def test_numbers_that_are_not_finite_stay_where_they_are() -> None:
    model = parse(f"g (float[N,5] x) => (float[N,6] y) <{numbers(w=(5, 6))}> {{ y = MatMul(x, w) }}")
    x = np.array([[np.inf, 1, 2, 3, 4], [np.nan, 0, 0, 0, 0], [1, 2, 3, 4, 5]], np.float32)
    found = graphopt.run(padded(model), {"x": x})["y"]
    expected = graphopt.run(model, {"x": x})["y"]
    assert np.array_equal(np.isfinite(found), np.isfinite(expected)) and np.isfinite(found[2]).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[5] x, float[5,7] w) => (float[7] y) { y = MatMul(x, w) }", "an operand is a vector"),
        (
            "g (float[N,K] x, float[K,7] w) => (float[N,7] y) { y = MatMul(x, w) }",
            "the inner size or the number of columns is unknown",
        ),
        (
            "g (uint32[N,5] x, uint32[5,8] w) => (uint32[N,8] y) { y = MatMul(x, w) }",
            "the device has no matrix units for uint32",
        ),
        (
            "g (float[5,N] x, float[5,7] w) => (float[N,7] y) { y = Gemm <transA = 1> (x, w) }",
            "the number of rows is unknown",
        ),
    ],
)
def test_reasons_for_unchanged_products(text: str, reason: str) -> None:
    assert refusals(parse(text)) == [reason]


def test_types_that_pad_does_not_accept_prevent_padding() -> None:
    text = "g (uint8[N,5] x, uint8[5,16] w) => (int32[N,16] y) { y = MatMulInteger(x, w) }"
    assert refusals(parse(text, opset=10)) == ["Pad of opset 10 does not accept uint8"]
    assert ops(padded(parse(text, opset=13))) == ["Pad", "Pad", "MatMulInteger"]


def test_shared_weights_are_not_copied_if_they_are_large() -> None:
    model = parse(f"""g (float[N,63] x) => (float[N,65] y, float[63,65] z) <{numbers(w=(63, 65))}> {{
        y = MatMul(x, w)
        z = Neg(w)
    }}""")
    run_pipeline(model, ALWAYS, Options(fold_limit=1 << 20))
    assert "Slice" in ops(model)
    model = parse(f"""g (float[N,63] x) => (float[N,65] y, float[63,65] z) <{numbers(w=(63, 65))}> {{
        y = MatMul(x, w)
        z = Neg(w)
    }}""")
    run_pipeline(model, ALWAYS, Options(fold_limit=1 << 10))
    assert ops(model) == ["MatMul", "Neg"]


def test_weights_grow_within_limits() -> None:
    model = parse(f"g (float[N,1] x) => (float[N,513] y) <{numbers(w=(1, 513))}> {{ y = MatMul(x, w) }}")
    run_pipeline(model, ALWAYS, Options(fold_limit=1 << 10))
    assert ops(model) == ["MatMul"]


# Decisions ----------------------------------------------------------------------------------------

LARGE = "g (float16[8192,4093] x, float16[4093,4093] w) => (float16[8192,4093] y) { y = MatMul(x, w) }"


def test_cuda_is_a_reason_and_the_report_counts_products() -> None:
    report = graphopt.optimize(parse(LARGE), pipeline="pad-mm", device="cuda", verify=False).report
    assert report.optimized.ops == {"Pad": 2, "MatMul": 1, "Slice": 1}
    assert "pad-mm: 1 product padded for tensor cores" in list(report.notes())


def test_reasons_against_padding_are_in_the_report() -> None:
    text = LARGE.replace("8192", "N")
    report = graphopt.optimize(parse(text), pipeline="pad-mm", device="cuda", verify=False).report
    assert report.optimized.ops == {"MatMul": 1}
    assert "left alone 1 × pad-mm: the number of rows or matrices is unknown" in "\n".join(report.lines(1))
    fixed = graphopt.optimize(parse(text), pipeline="pad-mm", device="cuda", dims={"N": 8192}, verify=False)
    assert fixed.report.optimized.ops["Slice"] == 1


def test_other_devices_are_skipped_with_a_hint() -> None:
    report = graphopt.optimize(parse(LARGE), pipeline="pad-mm", device="cpu", verify=False).report
    assert report.optimized.ops == {"MatMul": 1}
    assert [(hint.code, hint.message) for hint in report.hints] == [
        ("no-tensor-cores", "pad-mm skipped: the CPU has no tensor cores")
    ]


def test_exact_numerics_permit_no_padding() -> None:
    model = parse(LARGE)
    run_pipeline(model, ALWAYS, Options(numerics=Numerics.EXACT))
    assert ops(model) == ["MatMul"]


def test_a_small_product_is_unchanged_on_cuda() -> None:
    model = parse("g (float[6,7] x, float[7,9] w) => (float[6,9] y) { y = MatMul(x, w) }")
    run_pipeline(model, "pad-mm", CUDA)
    assert ops(model) == ["MatMul"]
