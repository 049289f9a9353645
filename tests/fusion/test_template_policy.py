"""Classes of shapes of templates, and decisions by figures in the table of costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from graphopt import ir
from graphopt.context import Context, Options, context_for
from graphopt.cost import Axis, Costs, Grid, shipped
from graphopt.fusion import template_policy
from graphopt.fusion.kernel_policy import FusionPolicy, Kernels
from graphopt.fusion.template_policy import is_faster_as_template, is_ruled_out, shape_class, template_name
from graphopt.fusion.template_table import Match, matches
from graphopt.tuning.template_subjects import TEMPLATE_CASES
from tests.model_testing import parse

CONV = "g (float[1,8,16,16] x, float[4,8,3,3] w) => (float[1,4,14,14] y) { y = Conv(x, w) }"


@dataclass(frozen=True)
class Nothing:
    """Parameters of a template."""


@pytest.fixture(autouse=True)
def every_product_has_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        template_policy,
        "has_template",
        lambda node: node.op_type not in ("DequantizeLinear", "Gelu", "Transpose"),
    )


def match_of(model: ir.Model, expected: bool = True) -> Match:
    """A match of all nodes of ``model``."""
    nodes = tuple(node for node in model.graph if node.op_type != "Constant")
    first = next(node for node in nodes)
    return Match(
        "conv", nodes, tuple(first.inputs), (nodes[-1].outputs[0],), Nothing(), lambda match, cx: expected
    )


def case_of(text: str) -> tuple[str, str, int | None]:
    model = parse(text)
    with context_for(model) as cx:
        found = shape_class(match_of(model), cx)
    assert found is not None
    return found.op, found.case, found.operations


@pytest.mark.parametrize(
    ("x", "w", "attributes", "case"),
    [
        ("1,8,16,16", "4,8,3,3", "", "2d, 3×3"),
        ("1,8,16,16", "4,8,3,3", "<strides = [2, 2]>", "2d"),
        ("1,8,16,16", "4,8,1,1", "", "2d, 1×1"),
        ("1,8,16,16", "8,1,3,3", "<group = 8>", "2d, depthwise"),
        ("1,8,16,16", "8,4,3,3", "<group = 2>", "2d, grouped"),
        ("1,1,640", "258,1,256", "<strides = [128]>", "1d, 1 channel in"),
        ("1,8,640", "1,8,3", "", "1d, 1 channel out"),
        ("1,8,6,6,6", "4,8,3,3,3", "", "3d"),
    ],
)
def test_classes_of_convolutions(x: str, w: str, attributes: str, case: str) -> None:
    rank = x.count(",") + 1
    out = ",".join("ABCDE"[:rank])
    text = f"g (float[{x}] x, float[{w}] w) => (float[{out}] y) {{ y = Conv {attributes} (x, w) }}"
    assert case_of(text)[:2] == ("Conv template", case)


@pytest.mark.parametrize(
    ("a", "b", "case", "operations"),
    [
        ("64,32", "32,1", "column", 2 * 64 * 32),
        ("1,32", "32,16", "computed, few rows", 2 * 32 * 16),
        ("4,8,32", "4,32,8", "computed, few rows", 2 * 4 * 8 * 32 * 8),
        ("4,20,32", "4,32,8", "computed", 2 * 4 * 20 * 32 * 8),
        ("8,32", "32,16", "computed, few rows", 2 * 8 * 32 * 16),
        ("M,32", "32,16", "computed, few rows", None),
    ],
)
def test_classes_of_products(a: str, b: str, case: str, operations: int) -> None:
    dims = ",".join("ABCD"[: a.count(",") + 1])
    found = case_of(f"g (float[{a}] x, float[{b}] w) => (float[{dims}] y) {{ y = MatMul(x, w) }}")
    assert found == ("MatMul template", case, operations)


def test_constant_matrices_with_and_without_an_epilogue() -> None:
    body = "w = Constant <value = float[2,2] {1, 2, 3, 4}> () "
    plain = f"g (float[3,2] x) => (float[3,2] y) {{ {body} y = MatMul(x, w) }}"
    fused = f"g (float[3,2] x) => (float[3,2] y) {{ {body} t = MatMul(x, w) y = Gelu(t) }}"
    assert (case_of(plain)[1], case_of(fused)[1]) == ("constant", "constant, epilogue")


@pytest.mark.parametrize(
    ("rows", "columns", "is_kernel"),
    [("8", 4096, True), ("16", 4096, False), ("M", 4096, False), ("16", 512, True), ("M", 512, True)],
)
def test_products_of_few_rows_may_have_many_columns(rows: str, columns: int, is_kernel: bool) -> None:
    shapes = f"float[{rows},1024] x, float[1024,{columns}] w"
    model = parse(f"g ({shapes}) => (float[{rows},{columns}] y) {{ y = MatMul(x, w) }}")
    with context_for(model) as cx:
        (match,) = matches(next(iter(model.graph)), cx)
        assert match.is_faster is not None and match.is_faster(match, cx) is is_kernel


def attention_of(
    op: str, q: str, past: str = "", attributes: str = "", mask: str = "", heads: int = 2
) -> str:
    """Attention of two heads of keys with 16 elements."""
    inputs = f"float[1,{q},{16 * heads}] q, float[1,{q},32] k, float[1,{q},32] v"
    outputs, names = f"float[1,{q},{16 * heads}] y", "y"
    operands = "q, k, v"
    if op == "MultiHeadAttention":
        attributes = f"num_heads = {heads}{attributes}"
        operands += ", , " + (", m" if mask else ", " if past else "")
    elif op == "Attention":
        attributes = f"q_num_heads = {heads}, kv_num_heads = 2{attributes}"
        operands += ", m" if mask else ", " if past else ""
    else:
        attributes = f"num_heads = {heads}, kv_num_heads = 2"
    inputs += f", float[1,1,{mask}] m" * bool(mask)
    if past or op == "GroupQueryAttention":
        inputs += f", float[1,2,{past},16] pk, float[1,2,{past},16] pv" if past else ""
        operands += ", pk, pv" if past else ", , "
        outputs, names = f"{outputs}, float[1,2,T,16] ok, float[1,2,T,16] ov", "y, ok, ov"
    if op == "GroupQueryAttention":
        inputs, operands = f"{inputs}, int32[1] used, int32 total", f"{operands}, used, total"
    domain = "" if op == "Attention" else "com.microsoft."
    return f"g ({inputs}) => ({outputs}) {{ {names} = {domain}{op} <{attributes}> ({operands}) }}"


@pytest.mark.parametrize(
    ("text", "is_kernel"),
    [
        (attention_of("MultiHeadAttention", "64"), True),
        (attention_of("MultiHeadAttention", "128"), False),
        (attention_of("MultiHeadAttention", "256", mask="256,256"), True),
        (attention_of("MultiHeadAttention", "512", mask="512,512"), False),
        (attention_of("MultiHeadAttention", "512", attributes=", unidirectional = 1"), True),
        (attention_of("Attention", "2"), True),
        (attention_of("Attention", "16"), False),
        (attention_of("Attention", "16", mask="16,16"), False),
        (attention_of("Attention", "32", attributes=", is_causal = 1"), False),
        (attention_of("Attention", "64", attributes=", is_causal = 1"), True),
        (attention_of("Attention", "S", attributes=", is_causal = 1"), True),
        (attention_of("Attention", "1", past="256"), True),
        (attention_of("Attention", "1", past="512"), False),
        (attention_of("Attention", "8", past="128"), False),
        (attention_of("MultiHeadAttention", "1", past="P"), True),
        (attention_of("GroupQueryAttention", "1", past="256"), True),
        (attention_of("GroupQueryAttention", "1", past="1024"), False),
        (attention_of("GroupQueryAttention", "1", past="1024", heads=8), True),
        (attention_of("GroupQueryAttention", "16"), True),
    ],
)
def test_attention_is_a_kernel_where_it_takes_at_most_95_percent(text: str, is_kernel: bool) -> None:
    model = parse(text, opset=23)
    with context_for(model) as cx:
        (match,) = matches(next(iter(model.graph)), cx)
        assert match.is_faster is not None and match.is_faster(match, cx) is is_kernel


def test_transposed_operands_are_a_class() -> None:
    text = "g (float[4,8,32] x, float[4,8,32] w) => (float[4,8,8] y) {"
    case = case_of(f"{text} t = Transpose <perm = [0, 2, 1]> (w) y = MatMul(x, t) }}")[1]
    assert case == "computed, transposed"


@pytest.mark.parametrize(
    ("rows", "case", "is_known"),
    [("1", "1 row", True), ("2,8", "few rows", True), ("17", "rows", True), ("M", "few rows", False)],
)
def test_classes_of_low_bit_products(rows: str, case: str, is_known: bool) -> None:
    text = f"""g (float[{rows},64] x, uint8[8,2,16] w, float[16] s) => (float[{rows},8] y) {{
        y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32> (x, w, s) }}"""
    op, name, operations = case_of(text)
    assert (op, name) == ("MatMulNBits template", f"4 bits, {case}")
    assert (operations is not None) is is_known


def decided(ratio: float | None, expected: bool, passes: int | None = None) -> bool:
    """The decision about :data:`CONV` by a figure, and the template's own rule."""
    axis = Axis("operations", (1,), 1)
    name = template_name("Conv")
    grids = () if ratio is None else (Grid(name, "2d, 3×3", "float", (axis,), (ratio,), (0.98,)),)
    model = parse(CONV)
    costs = Costs("figures", "cpu", grids=grids, passes=passes)
    with context_for(model, Options(costs=costs)) as cx:
        found = is_faster_as_template(match_of(model, expected), cx)
        assert bool(cx.weighed) is (ratio is not None and (expected or passes is not None))
    return found


def test_without_figures_the_rule_of_the_template_decides() -> None:
    assert decided(None, True) and not decided(None, False)


def test_shipped_figures_and_the_rule_must_both_expect_a_gain() -> None:
    assert decided(0.9, True) and not decided(0.9, False)
    assert not decided(0.96, True), "a gain of less than 5 %"


def test_figures_of_this_machine_decide_alone() -> None:
    assert decided(0.9, False, passes=5) and not decided(1.1, True, passes=5)


@pytest.mark.parametrize(("ratio", "is_candidate"), [(1.3, False), (1.2, True), (None, True)])
def test_much_slower_templates_are_not_raced(ratio: float | None, is_candidate: bool) -> None:
    axis = Axis("operations", (1,), 1)
    name = template_name("Conv")
    grids = () if ratio is None else (Grid(name, "2d, 3×3", "float", (axis,), (ratio,), (0.98,)),)
    model = parse(CONV)
    with context_for(model, Options(costs=Costs("figures", "cpu", grids=grids))) as cx:
        assert is_ruled_out(match_of(model), cx) is not is_candidate
        policy = FusionPolicy(cx, choice=Kernels.CANDIDATES)
        assert (policy.obstacle_to_template(match_of(model)) is None) is is_candidate


def test_figures_of_other_types_do_not_apply() -> None:
    model = parse(CONV.replace("float[", "float16["))
    axis = Axis("operations", (1,), 1)
    grid = Grid(template_name("Conv"), "2d, 3×3", "float", (axis,), (1.5,), (0.98,))
    with context_for(model, Options(costs=Costs("figures", "cpu", grids=(grid,)))) as cx:
        assert is_faster_as_template(match_of(model), cx)


def subject_class(cx: Context, model: ir.Model) -> tuple[str, str, str]:
    found = shape_class(match_of(model), cx)
    assert found is not None
    return found.op, found.case, found.dtype.name.lower()


@pytest.mark.parametrize("entry", TEMPLATE_CASES, ids=lambda entry: f"{entry.op}-{entry.case}-{entry.dtype}")
def test_measured_models_belong_to_their_class(entry: object) -> None:
    one = replace(entry, sizes=entry.sizes[:1])  # type: ignore[attr-defined, type-var]
    for operations, proto in one.models().items():  # type: ignore[attr-defined]
        model = ir.from_proto(proto)
        with context_for(model) as cx:
            found = shape_class(match_of(model), cx)
            assert found is not None and found.operations == operations
            assert (found.op, found.case) == (template_name(one.op), one.case)  # type: ignore[attr-defined]
            assert found.dtype.name.lower() == one.dtype  # type: ignore[attr-defined]


def test_shipped_figures_are_those_of_the_cases() -> None:
    keys = {(template_name(entry.op), entry.case, entry.dtype) for entry in TEMPLATE_CASES}
    assert len(keys) == len(TEMPLATE_CASES)
    shipped_keys = {(grid.op, grid.case, grid.dtype) for grid in shipped("cpu").grids}
    assert {key for key in shipped_keys if key[0].endswith(" template")} == keys


@pytest.mark.parametrize(("size", "is_kernel"), [(6, False), (7, True)])
def test_small_convolutions_between_quantizers_stay_with_onnxruntime(size: int, is_kernel: bool) -> None:
    model = parse(f"""g (uint8[N,3,{size},{size}] x, uint8[4,3,1,1] w) => (uint8[N,4,{size},{size}] y)
        <float s = {{0.1}}, uint8 z = {{128}}> {{
        a = DequantizeLinear(x, s, z)
        b = DequantizeLinear(w, s, z)
        c = Conv(a, b)
        y = QuantizeLinear(c, s, z) }}""")
    with context_for(model) as cx:
        node = next(node for node in model.graph if node.op_type == "Conv")
        match = next(each for each in matches(node, cx) if each.template == "quantized_conv")
        assert match.is_faster is not None and match.is_faster(match, cx) is is_kernel
