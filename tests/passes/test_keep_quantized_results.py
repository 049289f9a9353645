"""Passes that remove readers create no pairs of quantizers that onnxruntime would merge."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.rewrite import ort_qdq_miscompilation

#: Two pairs with different parameters, which onnxruntime merges if ``q``, ``d`` and ``p`` have no other readers.
_PAIRS = """
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    p = QuantizeLinear(d, s2, z2)
    y = DequantizeLinear(p, s2, z2)
"""
_BRANCHES = """<
    then_branch = a () => (float[A, B] u) { u = Sin(d) },
    else_branch = b () => (float[C, D] v) { v = Cos(x) }
>"""
#: By the pass that removes the other reader: the other reader, the outputs, and the dims of the input.
_READERS = {
    "dce": ("w = Sin(d)", "", "n, 4"),
    "constant-propagation,dce": ("h = Shape(d) w = Gather(h, i)", ", int64 w", "n, 4"),
    "constant-propagation": ("w = Shape(d)", ", int64[2] w", "3, 4"),
    "fold-if,dce": (f"w = If(no) {_BRANCHES}", ", float[A, B] w", "n, 4"),
    "unroll-loops,constant-propagation,dce": (
        """w = Loop(one, yes, x) <body = l (int64 k, bool t, float[A, B] a) => (bool t1, float[A, B] b) {
            t1 = Identity(t)
            h = Shape(d)
            j = Gather(h, i)
            e = ConstantOfShape<value = float[1] {2}>(h)
            b = Add(a, a)
        }>""",
        ", float[A, B] w",
        "n, 4",
    ),
    "trim-loops,dce": (
        """w, unused = Loop(m, , x, x) <body = l (int64 k, bool t, float[A, B] a, float[A, B] e)
            => (bool t1, float[A, B] b, float[A, B] f) {
            t1 = Identity(t)
            b = Sin(a)
            f = Add(e, d)
        }>""",
        ", float[A, B] w",
        "n, 4",
    ),
    "inline-functions,dce": ("w, unused = local.two(x, d)", ", float[A, B] w", "n, 4"),
    "O1": ("h = Shape(d) w = Gather(h, i)", ", int64 w", "n, 4"),
    "O2": ("w = Sin(d)", "", "n, 4"),
    "O3": ("w = Shape(d)", ", int64[2] w", "3, 4"),
}


def _model(readers: str, outputs: str, dims: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[{dims}] x, bool c, int64 m) => (float[{dims}] y{outputs})
        <float s = {{0.05}}, uint8 z = {{10}}, float s2 = {{0.07}}, uint8 z2 = {{90}},
         int64 i = {{1}}, int64 one = {{1}}, bool yes = {{1}}, bool no = {{0}}>
        {{ {_PAIRS} {readers} }}
        <domain: "local", opset_import: ["" : 17]>
        two (a, b) => (e, f) {{ e = Sin(a) f = Sin(b) }}"""
    )


def _optimized(model: onnx.ModelProto, pipeline: str) -> onnx.ModelProto:
    copy = ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString()))
    Pipeline.parse(pipeline, registry()).run(copy, context_for(copy))
    return ir.to_proto(copy)


def _run(model: onnx.ModelProto, *, optimizes: bool, dims: tuple[int, ...] = (3, 4)) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimizes else levels.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.linspace(-9, 9, math.prod(dims), dtype=np.float32).reshape(dims)
    feeds = {"x": x, "c": np.array(True), "m": np.array(3)}
    return list(session.run(None, feeds))


def _types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("pipeline", _READERS)
def test_pass_that_removes_a_reader(pipeline: str) -> None:
    before = _model(*_READERS[pipeline])
    after = _optimized(before, pipeline)
    wanted = _run(before, optimizes=False)
    for optimizes in (False, True):
        for a, b in zip(wanted, _run(after, optimizes=optimizes), strict=True):
            assert a.dtype == b.dtype and np.allclose(a, b, rtol=1e-6, atol=0), _types(after)
    assert "Clip" in _types(after)
    assert _optimized(after, pipeline) == after


@pytest.mark.parametrize(
    "readers, outputs, pipeline",
    [
        ("", "", "O2"),  # onnxruntime also merges the pairs of the original
        ("w = Sin(d)", ", float[A, B] w", "O2"),  # it joins none
        ("w = Shape(d)", ", int64[2] w", "O2"),  # the Shape is not dropped where its size is unknown
    ],
)
def test_pairs_are_unchanged(readers: str, outputs: str, pipeline: str) -> None:
    before = _model(readers, outputs, "n, 4")
    after = _optimized(before, pipeline)
    assert sorted(_types(after)) == sorted(_types(before))


@pytest.mark.parametrize("other, reads", [("", {"s", "z", "s2", "z2"}), ("w = Sin(d)", set())])
def test_parameters_that_decide_on_a_clip_are_recorded(other: str, reads: set[str]) -> None:
    """New ones are refused by name; parameters of unchanged pairs can be replaced."""
    model = ir.from_proto(_model(f"dead = Cos(d) {other}", ", float[A, B] w" if other else "", "n, 4"))
    Pipeline.parse("dce", registry()).run(model, context_for(model))
    assert set(ir.fold_record(model).built_in) == reads


@pytest.mark.parametrize("parameters", ("s, z", "s2"))
def test_pairs_that_are_not_joined_need_no_clip(parameters: str) -> None:
    """Neither with the same parameters, which are one pair, nor without a zero point."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] x) => (float[n, 4] y) <float s = {{0.05}}, uint8 z = {{10}}, float s2 = {{0.07}}> {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        p = QuantizeLinear(d, {parameters})
        y = DequantizeLinear(p, {parameters})
        w = Sin(d)
    }}"""
    assert "Clip" not in _types(_optimized(onnx.parser.parse_model(text), "dce"))


def test_converted_opset_moves_int8_before_dequantizing() -> None:
    """From opset 21 on, onnxruntime does not load moves of int8 after DequantizeLinear."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x, bool c, int64 m) => (float[4, n] y) <float s = {0.05}, int8 z = {3}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            y = Transpose<perm = [1, 0]>(d)
        }"""
    )
    after = _optimized(model, "convert-opset{target=21}")
    assert _types(after) == ["QuantizeLinear", "Transpose", "DequantizeLinear"]
    for optimizes in (False, True):
        assert np.array_equal(_run(after, optimizes=optimizes)[0], _run(model, optimizes=False)[0])


def test_transpose_is_quantized_first_if_only_an_output_remains() -> None:
    """onnxruntime would also quantize the output if it had no other readers."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x, bool c, int64 m) => (float[n, 4] y, float[4, n] w) <float s = {0.05}, uint8 z = {3}> {
            y = Sin(x)
            t = Transpose<perm = [1, 0]>(y)
            q = QuantizeLinear(t, s, z)
            w = DequantizeLinear(q, s, z)
            dead = Sin(y)
        }"""
    )
    assert np.array_equal(_run(model, optimizes=True)[0], _run(model, optimizes=False)[0])
    after = _optimized(model, "dce")
    assert _types(after) == ["Sin", "QuantizeLinear", "Transpose", "DequantizeLinear"]
    for a, b in zip(_run(after, optimizes=True), _run(model, optimizes=False), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    "pairs",
    [
        "i = Identity(d) p = QuantizeLinear(i, s2, z2) y = DequantizeLinear(p, s2, z2)",
        "p = QuantizeLinear(d, s2, z2) y = DequantizeLinear(p, s2, z2) v = DequantizeLinear(p, s2, z2)",
    ],
)
def test_pairs_merged_after_removed_nodes_and_for_several_readers(pairs: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x, bool c, int64 m) => (float[n, 4] y)
        <float s = {{0.05}}, uint8 z = {{10}}, float s2 = {{0.07}}, uint8 z2 = {{90}}> {{
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            {pairs}
            dead = Sin(d)
        }}"""
    )
    if " v = " in pairs:
        model.graph.output.append(onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, None))
    wanted = _run(model, optimizes=False)
    for pipeline in ("dce", "O2"):
        after = _optimized(model, pipeline)
        for a, b in zip(wanted, _run(after, optimizes=True), strict=True):
            assert np.array_equal(a, b), _types(after)


def test_pairs_of_an_inlined_branch() -> None:
    """onnxruntime joins no pairs in bodies."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x, bool c, int64 m) => (float[n, 4] y)
        <float s = {{0.05}}, uint8 z = {{10}}, float s2 = {{0.07}}, uint8 z2 = {{90}}, bool no = {{0}}> {{
            y = If(no) <
                then_branch = a () => (float[A, B] u) {{ u = Sin(x) }},
                else_branch = b () => (float[C, D] v) {{ {_PAIRS.replace("y =", "v =")} }}
            >
        }}"""
    )
    after = _optimized(model, "fold-if")
    assert _types(after) == [
        "QuantizeLinear",
        "DequantizeLinear",
        "Clip",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    assert np.array_equal(_run(after, optimizes=True)[0], _run(model, optimizes=False)[0])


#: By the pass that brings quantizers to another place: opset, graph, and the operators of the graph afterwards.
_CONTROL_FLOW = {
    "merge-ifs,dce": (
        17,
        _PAIRS
        + """
        unused = If(c) <
            then_branch = a () => (float[A, B] u) { u = Sin(d) },
            else_branch = b () => (float[C, D] v) { v = Cos(d) }
        >
        w = If(c) <
            then_branch = e () => (float[E, F] f) { f = Sin(x) },
            else_branch = h () => (float[G, H] i) { i = Cos(x) }
        >""",
        ["QuantizeLinear", "DequantizeLinear", "Clip", "QuantizeLinear", "DequantizeLinear", "If"],
    ),
    "hoist-loop-invariants": (
        17,
        f"""w = Loop(three, , x) <body = l (int64 k, bool t, float[A, B] a) => (bool t1, float[A, B] b) {{
            t1 = Identity(t)
            {_PAIRS.replace("y =", "e =")}
            b = Add(a, e)
        }}>
        y = Sin(w)""",
        ["QuantizeLinear", "DequantizeLinear", "Clip", "QuantizeLinear", "DequantizeLinear", "Loop", "Sin"],
    ),
    "sink-into-ifs": (
        21,
        """o = If(c) <
            then_branch = a () => (float[A, B] u) {
                q = QuantizeLinear(x, s, int8_z)
                d = DequantizeLinear(q, s, int8_z)
                u = Identity(d)
            },
            else_branch = b () => (float[C, D] v) { v = Transpose<perm = [1, 0]>(x) }
        >
        y = Transpose<perm = [1, 0]>(o)
        w = Sin(x)""",
        ["If", "Sin"],
    ),
}


@pytest.mark.parametrize("pipeline", _CONTROL_FLOW)
def test_quantizers_in_and_around_bodies(pipeline: str) -> None:
    """Pairs in front of merged Ifs, pairs that leave a loop, and int8 that is moved in a branch."""
    opset, nodes, types = _CONTROL_FLOW[pipeline]
    before = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[n, n] x, bool c, int64 m) => (float[n, n] y, float[n, n] w)
        <float s = {{0.05}}, uint8 z = {{10}}, float s2 = {{0.07}}, uint8 z2 = {{90}}, int8 int8_z = {{3}},
         int64 three = {{3}}> {{ {nodes} }}"""
    )
    wanted = _run(before, optimizes=False, dims=(3, 3))
    for passes in (pipeline, "O2", "O3"):
        after = _optimized(before, passes)
        for optimizes in (False, True):
            for a, b in zip(wanted, _run(after, optimizes=optimizes, dims=(3, 3)), strict=True):
                assert np.allclose(a, b, rtol=1e-6, atol=0), (passes, _types(after))
        assert _optimized(after, passes) == after
    assert _types(_optimized(before, pipeline)) == types


@pytest.mark.parametrize(
    ("scales", "joined"),
    [
        ((0.05, 0.05, 0.07, 0.07), True),
        ((0.05, 0.05, 0.05, 0.05), False),
        ((0.05, 0.06, 0.07, 0.07), False),
        ((0.05, 0.05, 0.07, 0.06), False),
    ],
    ids=["different pairs", "equal pairs", "the first is no pair", "the second is no pair"],
)
def test_onnxruntime_merges_only_pairs_with_own_parameters(scales: tuple[float, ...], joined: bool) -> None:
    """The predicate agrees with onnxruntime."""
    constants = ", ".join(f"float s{number} = {{{scale}}}" for number, scale in enumerate(scales))
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[64] x, bool c, int64 m) => (float[64] y) <{constants}, uint8 z = {{128}}> {{
        n = Neg(x)
        a = QuantizeLinear(n, s0, z)
        b = DequantizeLinear(a, s1, z)
        e = QuantizeLinear(b, s2, z)
        d = DequantizeLinear(e, s3, z)
        y = Sin(d)
    }}""")
    parsed = ir.from_proto(model)
    cx = context_for(parsed)
    assert any(ort_qdq_miscompilation.merges_pairs(cx, node) is not None for node in parsed.graph) is joined
    off, default = (_run(model, optimizes=optimizes, dims=(64,)) for optimizes in (False, True))
    assert np.array_equal(off[0], default[0]) is not joined
