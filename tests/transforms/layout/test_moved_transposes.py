"""Transposes around single operators, bodies and quantizers cancel."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from graphopt import ir
from graphopt.context import Options
from graphopt.numerics import Numerics
from tests.model_testing import agree, ops, parse, run_pipeline

#: Operators on ``t``, of the axes [N, C, H, W] with sizes [2, 6, 3, 4], to ``u`` of the same axes.
OPERATORS = {
    "unary": "u = Erf(t)",
    "clip": "low = Constant <value = float {-1.0}> () u = Clip(t, low)",
    "cast": "h = Cast <to = 11> (t) u = Cast <to = 1> (h)",
    "scalar": "k = Constant <value = float {2.5}> () u = Pow(t, k)",
    "vector": "k = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> () u = Mul(t, k)",
    "channels": "k = Constant <value = float[6,1,1] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> () u = PRelu(t, k)",
    "full constant": "k = Constant <value = float[1,6,1,1] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> () u = Div(k, t)",
    "where": "p = Less(t, t) u = Where(p, t, t)",
    "variadic": "k = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> () a = Neg(t) u = Max(t, a, k)",
    "concat": "a = Neg(t) b = Concat <axis = -2> (t, a) s = Constant <value = int64[2] {3, 3}> ()"
    " p, d = Split <axis = 2> (b, s) u = Add(p, d)",
    "slice": "b = Constant <value = int64[2] {5, 0}> () e = Constant <value = int64[2] {-100, 4}> ()"
    " a = Constant <value = int64[2] {1, -1}> () s = Constant <value = int64[2] {-1, 1}> () u = Slice(t, b, e, a, s)",
    "pad": "p = Constant <value = int64[8] {0, 1, 0, 0, 0, 0, 2, 0}> () q = Constant <value = int64[8]"
    ' {0, -1, 0, 0, 0, 0, -2, 0}> () a = Pad <mode = "reflect"> (t, p) u = Pad(a, q)',
    "softmax": "u = Softmax <axis = 1> (t)",
    "log-softmax": "u = LogSoftmax <axis = -3> (t)",
    "hardmax": "u = Hardmax <axis = 1> (t)",
    "reduce": "a = ReduceMean <axes = [1], keepdims = 1> (t) u = Sub(t, a)",
    "lp": "u = LpNormalization <axis = 1, p = 1> (t)",
    "cumsum": "k = Constant <value = int64 {-2}> () u = CumSum <reverse = 1> (t, k)",
    "tile": "k = Constant <value = int64[4] {1, 1, 2, 1}> () a = Tile(t, k) b = Constant <value = int64[1] {3}> ()"
    " z = Constant <value = int64[1] {0}> () x2 = Constant <value = int64[1] {2}> () u = Slice(a, z, b, x2)",
    "expand": "k = Constant <value = int64[4] {1, 6, 1, 4}> () u = Expand(t, k)",
    "gather": "k = Constant <value = int64[6] {5, 4, 3, 2, 1, 0}> () u = Gather <axis = 1> (t, k)",
    "gather elements": "k = Constant <value = float {0.0}> () a = Greater(t, k) b = Cast <to = 7> (a)"
    " u = GatherElements <axis = 1> (t, b)",
    "scatter elements": "k = Constant <value = float {0.0}> () a = Greater(t, k) b = Cast <to = 7> (a)"
    " p = Neg(t) u = ScatterElements <axis = 3> (t, b, p)",
    "topk": "k = Constant <value = int64[1] {6}> () u, i = TopK <axis = 1> (t, k)",
    "resize": "s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> () h = Constant <value = float[4] {1.0, 1.0, 0.5,"
    ' 0.5}> () a = Resize <mode = "nearest"> (t, , s) u = Resize <mode = "nearest"> (a, , h)',
    "squeeze": "k = Constant <value = int64[1] {2}> () a = ReduceMax <axes = [2], keepdims = 1> (t)"
    " b = Squeeze(a, k) c = Neg(b) d = Unsqueeze(c, k) u = Add(t, d)",
    "reduce without dims": "k = Constant <value = int64[2] {2, 3}> () a = ReduceMax <axes = [2, 3], keepdims = 0> (t)"
    " b = Unsqueeze(a, k) u = Add(t, b)",
    "reshape": "k = Constant <value = int64[3] {2, 6, 12}> () a = Reshape(t, k) b = Neg(a) l = Constant <value ="
    " int64[4] {2, 6, 3, 4}> () u = Reshape(b, l)",
    "split channels": "k = Constant <value = int64[5] {2, 2, 3, 3, 4}> () a = Reshape(t, k) b = Neg(a) l = Constant"
    " <value = int64[4] {2, 6, 3, 4}> () u = Reshape(b, l)",
    "quantizers": "s = Constant <value = float {0.02}> () z = Constant <value = uint8 {128}> ()"
    " q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z) u = Neg(d)",
    "quantizers by channel": "s = Constant <value = float[6] {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> () z = Constant <value ="
    " uint8[6] {128, 128, 128, 128, 128, 128}> () q = QuantizeLinear <axis = 1> (t, s, z)"
    " d = DequantizeLinear <axis = 1> (q, s, z) u = Neg(d)",
    "if": "u = If (flag) < then_branch = a () => (float[2,6,3,4] p) { p = Neg(t) },"
    " else_branch = b () => (float[2,6,3,4] q) { q = Abs(t) } >",
    "loop": "n = Constant <value = int64 {3}> () u = Loop (n, , t) < body = b (int64 i, bool k, float[2,6,3,4] p) =>"
    " (bool o, float[2,6,3,4] q) { o = Identity(k) q = Sin(p) } >",
    "loop without iterations": "n = Constant <value = int64 {0}> () u = Loop (n, , t) < body = b (int64 i, bool k,"
    " float[2,6,3,4] p) => (bool o, float[2,6,3,4] q) { o = Identity(k) q = Sin(p) } >",
    "scan": "u, r = Scan <num_scan_inputs = 1, body = b (float[2,6,3,4] p, float[6] e) => (float[2,6,3,4] q,"
    " float[6] f) { q = Sin(p) f = Neg(e) }> (t, rows)",
}
#: Operators that round in another order, so that they are only approximately equal.
ROUNDED = ("softmax", "log-softmax", "reduce", "reduce without dims")
#: Operators whose results may depend on the layout.
INEXACT = (*ROUNDED, "variadic")


def _model(steps: str, *, shape: str = "2,3,4,6") -> ir.Model:
    return parse(
        f"""g (float[{shape}] x, bool flag, float[5,6] rows) => (float out) {{
            t = Transpose <perm = [0, 3, 1, 2]> (x)
            {steps}
            out = Transpose <perm = [0, 2, 3, 1]> (u)
        }}"""
    )


def transposes(model: ir.Model) -> int:
    """The number of Transposes, also in bodies."""
    return sum(node.op_type == "Transpose" for graph in ir.graphs_of(model) for node in graph)


def _close(original: ir.Model, model: ir.Model) -> bool:
    """Whether both compute almost the same numbers."""
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32),
        "flag": np.array(True),
        "rows": np.ones((5, 6), np.float32),
    }
    results = []
    for one in (original, model):
        session = onnxruntime.InferenceSession(ir.to_bytes(one), providers=["CPUExecutionProvider"])
        results.append(session.run(None, {item.name: feeds[item.name] for item in session.get_inputs()})[0])
    return results[0].shape == results[1].shape and np.allclose(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_transposes_around_an_operator_cancel(name: str) -> None:
    original, model = _model(OPERATORS[name]), _model(OPERATORS[name])
    run_pipeline(model, "layout")
    assert transposes(model) == 0, ir.print_model(model)
    ir.validate(model)
    assert _close(original, model) if name in ROUNDED else agree(original, model)
    assert model.graph.outputs[0].name == "out"
    assert run_pipeline(model, "layout")[1].actions == 0


@pytest.mark.parametrize("name", INEXACT)
def test_exact_runs_keep_transposes(name: str) -> None:
    model = _model(OPERATORS[name])
    run_pipeline(model, "layout", Options(numerics=Numerics.EXACT))
    assert transposes(model) > 0


@pytest.mark.parametrize(
    "steps",
    [
        'u = Resize <mode = "linear"> (t, , s) s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()',
        "k = Constant <value = int64[2] {2, 72}> () a = Reshape(t, k) b = Neg(a) l = Constant <value = int64[4]"
        " {2, 6, 3, 4}> () u = Reshape(b, l)",
        "u = GlobalAveragePool(t)",
        "u = RandomNormalLike(t)",
    ],
    ids=["interpolation", "merged channels", "pool", "random"],
)
def test_other_operators_keep_transposes(steps: str) -> None:
    if steps.startswith("u = Resize"):
        steps = " ".join(reversed(steps.split(" s = "))).replace("Constant", "s = Constant", 1)
    model = _model(steps)
    run_pipeline(model, "layout")
    assert transposes(model) == 2


def test_the_smaller_tensor_is_transposed() -> None:
    steps = "k = Constant <value = int64[1] {0}> () e = Constant <value = int64[1] {2}> ()"
    steps += " i = Constant <value = int64[1] {1}> () s = Constant <value = float[2] {1.0, 2.0}> ()"
    steps += " v = Slice(t, k, e, i) w = Abs(v) u = InstanceNormalization(w, s, s)"
    original, model = _model(steps), _model(steps)
    run_pipeline(model, "layout")
    order = [op for op in ops(model) if op != "Constant"]
    assert order[0] == "Slice"  # then the Transposes of the slice
    assert sorted(order) == ["Abs", "InstanceNormalization", "Slice", "Transpose", "Transpose"]
    assert agree(original, model)


def test_transposes_cancel_over_a_whole_network() -> None:
    """Values with several readers, two operands and outputs inside, as in models from TensorFlow."""
    text = """g (float[N,8,8,4] x, float[4,4,3,3] w) => (float z, float[N,8,8,4] inner) {
        a = Transpose <perm = [0, 3, 1, 2]> (x)
        b = Conv <pads = [1, 1, 1, 1]> (a, w)
        c = Transpose <perm = [0, 2, 3, 1]> (b)
        inner = Relu(c)
        d = Transpose <perm = [0, 3, 1, 2]> (inner)
        e = Conv <pads = [1, 1, 1, 1]> (d, w)
        f = Transpose <perm = [0, 2, 3, 1]> (e)
        h = Add(f, inner)
        i = Sigmoid(h)
        j = Mul(h, i)
        k = Transpose <perm = [0, 3, 1, 2]> (j)
        l = Conv <pads = [1, 1, 1, 1]> (k, w)
        m = Transpose <perm = [0, 2, 3, 1]> (l)
        z = ReduceMax <axes = [1, 2], keepdims = 0> (m)
    }"""
    original, model = parse(text), parse(text)
    run_pipeline(model, "layout")
    assert transposes(model) == 2  # of the input and the output inside
    assert agree(original, model)
    assert [value.name for value in model.graph.outputs] == ["z", "inner"]


def test_a_shared_transpose_of_an_outer_value_moves_out_of_a_loop_but_not_of_a_branch() -> None:
    text = """g (float[2,3,4,6] x, bool c, int64 n) => (float z, float w) {
        z = If (c) <
            then_branch = a () => (float p) { t = Transpose <perm = [0, 3, 1, 2]> (x) p = GlobalMaxPool(t) },
            else_branch = b () => (float q) { k = Neg(x) s = Transpose <perm = [0, 3, 1, 2]> (k) q = GlobalMaxPool(s) } >
        s0 = Constant <value = float[2,6,1,1] {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,10.0,11.0,12.0}> ()
        w = Loop (n, , s0) < body = l (int64 i, bool g, float[2,6,1,1] m) => (bool h, float[2,6,1,1] o) {
            h = Identity(g)
            u = Abs(x)
            v = Transpose <perm = [0, 3, 1, 2]> (u)
            y = GlobalMaxPool(v)
            o = Add(m, y)
        } >
    }"""
    original, model = parse(text), parse(text)
    run_pipeline(model, "layout")
    outer = [node for node in model.graph if node.op_type == "Transpose"]
    assert len(outer) == 1
    assert agree(original, model)


def test_functions_are_processed_with_their_interface() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[2,3,4,6] x) => (float[2,3,4,6] z) { z = own.f(x) }
    <domain: "own", opset_import: ["": 17]> f (x) => (z) {
        t = Transpose <perm = [0, 3, 1, 2]> (x)
        u = Relu(t)
        z = Transpose <perm = [0, 2, 3, 1]> (u)
    }"""
    original, model = parse(text), parse(text)
    run_pipeline(model, "layout")
    function = next(iter(model.functions.values()))
    if transposes(model):  # the rank of a formal is not known in every analysis
        pytest.fail(ir.print_model(model))
    assert [value.name for value in (*function.inputs, *function.outputs)] == ["x", "z"]
    assert agree(original, model)


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("dims", ["dynamic", "ones", "empty"])
def test_dims_of_all_kinds(rank: int, dims: str) -> None:
    sizes = {"dynamic": "A,B,C,D,E", "ones": "A,1,1,4,1", "empty": "A,0,3,2,1"}[dims].split(",")[:rank]
    there, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    text = f"""g (float[{",".join(sizes)}] x, float[{sizes[-1]}] y) => (float z) {{
        t = Transpose <perm = {there}> (x)
        a = Abs(t)
        b = Transpose <perm = {back}> (a)
        z = Mul(b, y)
    }}"""
    original, model = parse(text), parse(text)
    run_pipeline(model, "layout")
    assert ops(model) == ["Abs", "Mul"]
    assert agree(original, model)


@pytest.mark.parametrize("opset", [6, 7])
def test_operators_that_broadcast_along_an_attribute_are_left_alone(opset: int) -> None:
    text = """g (float[2,3,4] x) => (float z) {
        t = Transpose <perm = [0, 2, 1]> (x)
        a = Abs(t)
        z = Transpose <perm = [0, 2, 1]> (a)
    }"""
    model = parse(text, opset=opset)
    run_pipeline(model, "layout")
    assert transposes(model) == (2 if opset == 6 else 0)


def test_a_refused_rewrite_changes_nothing() -> None:
    model = _model("u = Abs(t)")
    before = ir.to_bytes(model)
    run_pipeline(model, "layout", gate=lambda action: False)
    assert ir.to_bytes(model) == before


def test_long_chains() -> None:
    steps = []
    for index in range(700):
        x = f"w{index}" if index else "x"
        steps.append(f"t{index} = Transpose <perm = [1, 0]> ({x}) u{index} = Abs(t{index})")
        steps.append(f"v{index} = Transpose <perm = [1, 0]> (u{index}) w{index + 1} = Neg(v{index})")
    model = parse(f"g (float[2,3] x) => (float w700) {{ {' '.join(steps)} }}")
    run_pipeline(model, "layout")
    assert ops(model) == ["Abs", "Neg"] * 700


def test_overridable_initializers_and_graph_inputs_are_not_changed() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,3] x, float[3,2] k = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}) => (float z) {
        t = Transpose <perm = [1, 0]> (x)
        u = Add(t, k)
        v = Neg(u)
        z = Transpose <perm = [1, 0]> (v)
    }"""
    original, model = parse(text), parse(text)
    run_pipeline(model, "layout")
    assert [value.name for value in model.graph.inputs] == ["x", "k"]
    assert agree(original, model)
