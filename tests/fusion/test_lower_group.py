"""Lowering: shared memory, loop order, sizes, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.analysis.symbolic import symbol
from graphopt.context import context_for
from graphopt.fusion import lower_group
from graphopt.fusion.group_signature import Signature
from graphopt.fusion.loops import interpreter
from graphopt.fusion.loops.builder import IRBuilder
from graphopt.fusion.loops.ir import Access, CantFuse, Element, Kernel, Size, Symbol
from graphopt.fusion.loops.printer import text
from graphopt.fusion.size_symbols import SymbolTable
from graphopt.ort import session
from tests.model_testing import parse
from tests.transforms.test_fuse_groups import fused, ops

X, Y = "float[N,64] x", "float[N,64] y"
ENDS = (
    "int64[1] last = {-1}, int64[1] before = {-200}, int64[1] one = {1}, int64[1] back = {-1},"
    " int64[1] first = {1}, int64[1] end = {900}"
)


def kernels(body: str, inputs: str = X, outputs: str = Y, constants: str = ENDS) -> list[Kernel]:
    """The kernels of a graph; a kernel of the whole graph is compared with onnxruntime."""
    model, groups = fused(f"g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}")
    if len(groups) == 1 and ops(model.graph) == [groups[0].name] and groups[0].kernel is not None:
        _check(model, groups[0].kernel)
    return [group.kernel for group in groups if group.kernel is not None]


def _check(model: ir.Model, kernel: Kernel) -> None:
    (node,) = (node for node in model.graph if node.op_type == kernel.name)
    random = np.random.default_rng(1)
    given, feeds = [], {}
    for value, port in zip(node.inputs, kernel.inputs, strict=True):
        assert value is not None
        constant = ir.constant_of(value)
        if constant is None:
            shape = [interpreter.number(dim, [3, 5]) for dim in port.dims]
            feeds[str(value.name)] = random.integers(0, 9, shape).astype(interpreter.TYPES[port.element])
        given.append(feeds[str(value.name)] if constant is None else constant.numpy())
    expected = session.run(session.create(ir.to_proto(model).SerializeToString(), optimizations="off"), feeds)
    found = dict(zip(node.outputs, interpreter.run(kernel, given), strict=True))
    for value, array in zip(model.graph.outputs, expected, strict=True):
        np.testing.assert_allclose(found[value], array, rtol=2e-3, atol=1e-6)


def one(body: str, inputs: str = X, outputs: str = Y, constants: str = ENDS) -> Kernel:
    (kernel,) = kernels(body, inputs, outputs, constants)
    return kernel


# Shared memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, inputs, outputs, pairs",
    [
        ("a = Sin(x) y = Mul(a, x)", X, Y, ((0, 0),)),
        ("a = Neg(x) y = Mul(a, v)", "float[N,64] x, float[N,64] v", Y, ((0, 0),)),
        ("a = Neg(b) s = Mul(a, x) y = Exp(s)", "float[64] b, float[N,64] x", Y, ((1, 0),)),
        ("a = Abs(x) c = Cast <to = 6> (a) y = Neg(c)", X, "int32[N,64] y", ((0, 0),)),
        (
            "c = Cast <to = 1> (x) d = Exp(c) y = Cast <to = 10> (d)",
            "float16[N,64] x",
            "float16[N,64] y",
            ((0, 0),),
        ),
        ("a = Abs(x) y = Exp(a) z = Neg(a)", X, f"{Y}, float[N,64] z", ((0, 0),)),
        (
            "a = Neg(x) y = Mul(a, v) z = Sub(a, v)",
            "float[N,64] x, float[N,64] v",
            f"{Y}, float[N,64] z",
            ((0, 0), (1, 1)),
        ),
    ],
)
def test_output_shares_memory_with_an_input_read_at_the_same_index(
    body: str, inputs: str, outputs: str, pairs: tuple[tuple[int, int], ...]
) -> None:
    assert one(body, inputs, outputs).in_place == pairs


@pytest.mark.parametrize(
    "body, inputs, outputs",
    [
        # also read elsewhere
        ("a = Abs(x) r = Slice(a, last, before, one, back) y = Mul(r, x)", X, Y),
        ("r = Slice(x, last, before, one, back) a = Abs(r) y = Exp(a)", X, Y),
        ("a = Abs(x) t = Transpose <perm = [1,0]> (a) y = Sub(t, x)", "float[9,9] x", "float[9,9] y"),
        # part of it
        ("a = Slice(x, first, end, one) b = Abs(a) y = Exp(b)", "float[N,65] x", "float[N,64] y"),
        # elements of other sizes
        ("a = Abs(x) c = Cast <to = 10> (a) y = Neg(c)", X, "float16[N,64] y"),
        ("a = Abs(x) c = Cast <to = 7> (a) y = Neg(c)", X, "int64[N,64] y"),
        ("a = Cast <to = 1> (x) y = Neg(a)", "uint8[N,64] x", Y),
        # broadcast
        ("a = Neg(b) y = Expand(a, sizes)", "float[1,64] b, int64[2] sizes", "float[4,64] y"),
    ],
)
def test_output_shares_no_memory(body: str, inputs: str, outputs: str) -> None:
    assert all(not kernel.in_place for kernel in kernels(body, inputs, outputs))


def test_reductions_and_segments_share_no_memory() -> None:
    soft = one("a = Abs(x) y = Softmax(a)")
    assert soft.reduced and soft.in_place == ()
    joined = one(
        "a = Abs(x) b = Neg(v) c = Concat <axis = 1> (a, b) y = Exp(c)",
        "float[N,64] x, float[N,2] v",
        "float[N,66] y",
    )
    assert len(joined.segments) == 2 and joined.in_place == ()
    swapped = one(
        "a = Slice(x, half, end, one) b = Slice(x, zero, half, one) n = Neg(a)"
        " c = Concat <axis = 1> (n, b) y = Mul(c, x)",
        constants=ENDS + ", int64[1] half = {32}, int64[1] zero = {0}",
    )
    assert len(swapped.segments) == 2 and swapped.in_place == ()


# Loops ------------------------------------------------------------------------------------------------


def test_scattered_accesses_are_refused() -> None:
    def turned(columns: int) -> list[Kernel]:
        return kernels(
            "a = Transpose <perm = [1,0]> (x) b = Exp(a) y = Neg(b)",
            f"float[40,{columns}] x",
            f"float[{columns},40] y",
        )

    (kernel,) = turned(16)
    (load, *_) = kernel.segments[0].body
    assert load.access is not None and load.access.strides == (Size(1), Size(16))
    assert turned(17) == []
    assert kernels("a = Transpose(x) b = Exp(a) y = Neg(b)", "float[N,M] x", "float[M,N] y") == []


def test_interleaved_elements_are_read_in_inner_loops() -> None:
    kernel = one(
        "c = Cast <to = 1> (x) e = Exp(c) y = Transpose <perm = [0,3,1,2]> (e)",
        "uint8[2,H,W,3] x",
        "float[2,3,H,W] y",
    )
    assert [axis.size for axis in kernel.axes] == [Size(2), Size(1, (0,)), Size(3), Size(1, (1,))]


def test_reduction_axes_are_last_or_before_the_contiguous_axis() -> None:
    last = one("a = Abs(x) y = Softmax(a)")
    assert [axis.reduced for axis in last.axes] == [False, True]
    before = one("a = Abs(x) y = Softmax <axis = 1> (a)", "float[B,40,64] x", "float[B,40,64] y")
    assert [axis.reduced for axis in before.axes] == [False, True, False]
    whole = one("a = Abs(x) y = ReduceSum <keepdims = 0> (a)", outputs="float y")
    assert [axis.reduced for axis in whole.axes] == [True, True]


def test_number_of_instructions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "a = Sin(x) b = Cos(a) c = Sin(b) y = Cos(c)"
    assert len(one(chain).segments[0].body) == 5
    monkeypatch.setattr(lower_group, "_MOST_STEPS", 3)
    assert len(one(chain).segments[0].body) == 3  # the last nodes are left out


def test_default_limit_of_instructions_is_600() -> None:
    def softened(times: int) -> list[Kernel]:
        steps = " ".join(f"a{number + 1} = Softplus(a{number})" for number in range(times))
        return kernels(f"a0 = Abs(x) {steps} y = Neg(a{times})")

    (kernel,) = softened(30)
    assert 300 < len(kernel.segments[0].body) < 600
    assert softened(80) == []


# Ends of groups -----------------------------------------------------------------------------------------


def test_last_nodes_are_dropped_until_a_group_compiles() -> None:
    model, groups = fused("""g (float[64,32] x) => (float[32,64] y) {
        a = Exp(x) b = Neg(a) c = Sin(b) t = Transpose <perm = [1,0]> (c) y = Cos(t)
    }""")
    (group,) = groups
    assert ops(group.function) == ["Exp", "Neg", "Sin"] and ops(model.graph)[1:] == ["Transpose", "Cos"]


def test_free_moves_are_removed_from_the_ends_of_a_group() -> None:
    """A slice starts a cluster of its own, because its reshaped operand is read partially."""
    model, groups = fused("""g (float[N,12] x) => (float[N,4,2] y)
        <int64[3] sh = {0,2,6}, int64[3] other = {0,4,3}, int64[1] one = {1}, int64[1] three = {3}, int64[1] axis = {2}> {
        f = Reshape(x, sh) a = Abs(f) b = Exp(a) r = Reshape(b, other) s = Slice(r, one, three, axis) n = Neg(s)
        y = Sin(n)
    }""")
    assert [ops(group.function) for group in groups] == [["Abs", "Exp"], ["Slice", "Neg", "Sin"]]
    assert ops(model.graph) == ["Reshape", groups[0].name, "Reshape", groups[1].name]


def test_data_constants_are_inputs_and_size_constants_are_inside() -> None:
    constants = "float[2] more = {1, 2}, int64[2] flat = {-1, 6}, float two = {2}"
    kernel = one(
        "a = Mul(x, two) r = Reshape(a, flat) b = Exp(r) y = Mul(b, x)",
        "float[N,6] x",
        "float[N,6] y",
        constants,
    )
    assert len(kernel.inputs) == 1
    kernel = one(
        "a = Abs(x) c = Concat <axis = 0> (a, more) y = Exp(c)", "float[100] x", "float[102] y", constants
    )
    assert [port.dims for port in kernel.inputs] == [(Size(100),), (Size(2),)]


# Sizes -------------------------------------------------------------------------------------------------


def test_sizes_are_derived_from_input_shapes() -> None:
    n, m = symbol("N"), symbol("M")
    table = SymbolTable([[4 * n, m], [n, n * m, n + m]])
    # a symbol is read from a dim that consists of it alone; sums are symbols of their own
    assert table.symbols == [Symbol(0, 1), Symbol(1, 0), Symbol(1, 2)]
    assert table.size(7) == Size(7) and table.size(m) == Size(1, (0,)) and table.size(n) == Size(1, (1,))
    assert table.size(4 * n) == Size(4, (1,)) and table.size(n + m) == Size(1, (2,))
    assert table.size(6 * n * m) == Size(6, (0, 1)) and table.size(n * n) == Size(1, (1, 1))
    assert table.product([4 * n, 3, m]) == Size(12, (0, 1)) and table.product([n, 0]) == Size(0)
    for unknown in (symbol("K"), n + 1, 2 * m + n, symbol("K") * n):
        with pytest.raises(CantFuse, match="shapes of the inputs do not determine"):
            table.size(unknown)


def test_a_product_of_unknown_factors_is_a_symbol() -> None:
    n, m = symbol("N"), symbol("M")
    table = SymbolTable([[4 * n, 64]])
    assert table.size(4 * n) == Size(1, (0,)) and table.symbols == [Symbol(0, 0)]
    for unknown in (n, 8 * n, m):
        with pytest.raises(CantFuse):
            table.size(unknown)


def test_underivable_sizes_are_refused() -> None:
    ends = "int64[1] one = {1}, int64[1] end = {900}, int64[1] axis = {0}"
    assert (
        kernels("a = Slice(x, one, end, axis) b = Exp(a) y = Neg(b)", "float[N,64] x", "float[M,64] y", ends)
        == []
    )


def test_signatures_name_symbols_before_products() -> None:
    model = parse("g (float[N,4] x) => (float[M] y) <int64[1] flat = {-1}> { y = Reshape(x, flat) }")
    (x,), (y,) = model.graph.inputs, model.graph.outputs
    with context_for(model) as cx:
        found = Signature.of([y, x], [y], cx)
    assert found.to_dict() == {"inputs": ["f32[4*d0]", "f32[d0,4]"], "outputs": ["f32[4*d0]"]}


# Instructions -------------------------------------------------------------------------------------------


def test_a_sum_over_one_element_adds_zero() -> None:
    """The sum of -0.0 is 0.0, like in onnxruntime."""
    body = IRBuilder()
    term = body.load(Access(0, ()), Element.F32)
    assert body.steps[body.reduce("sum", term).index].op == "add"
    assert body.reduce("max", term) == term
    counted = body.load(Access(1, ()), Element.I32)
    assert body.reduce("sum", counted) == counted


@pytest.mark.parametrize("divisor, taken", [(3, True), (-2, True), (0, False), (-1, False)])
def test_integer_divisions_that_may_trap_are_refused(divisor: int, taken: bool) -> None:
    """Division by 0, and of the smallest number by -1."""
    found = kernels(
        "a = Div(x, by) y = Add(a, x)", "int32[N,64] x", "int32[N,64] y", f"int32 by = {{{divisor}}}"
    )
    assert bool(found) is taken


def test_text_form_of_a_kernel() -> None:
    kernel = one("y = Softmax(x) z = Neg(y)", outputs="float[N,64] y, float[N,64] z")
    assert text(kernel).replace(kernel.name, "NAME") == (
        "kernel NAME\n"
        "  in0: f32[s0, 64]\n"
        "  out0: f32[s0, 64]\n"
        "  out1: f32[s0, 64]\n"
        "  s0 = in0.shape[0]\n"
        "  for i0 < s0\n"
        "  for i1 < 64 (reduced)\n"
        "    %0: f32 = load in0[64*i0 + i1]\n"
        "    %1: f32 = reduce_max %0\n"
        "    %2: f32 = sub %0 %1\n"
        "    %3: f32 = exp %2\n"
        "    %4: f32 = reduce_sum %3\n"
        "    %5: f32 = div %3 %4\n"
        "    %6: f32 = neg %5\n"
        "    out0[64*i0 + i1] = %5\n"
        "    out1[64*i0 + i1] = %6\n"
    )
