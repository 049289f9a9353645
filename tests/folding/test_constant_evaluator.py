"""The evaluator: exact results for all computable nodes, without crashing the process."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.folding.constant_evaluator import Evaluator
from graphopt.process.child import Child
from tests.ort.build import parse

LEAST = -(2**63)


@pytest.fixture(scope="module")
def child():
    with Child(memory=1 << 30, preload=("onnxruntime", "graphopt.folding.run_constant_model")) as child:
        yield child


def evaluate(model, wanted=None, **settings):
    """Compute the outputs (or ``wanted``): tensors by name, reasons by operator, and the evaluator."""
    evaluator = Evaluator.of(model, **settings)
    reasons = {}
    values = {value.name: value for node in model.graph for value in node.outputs}
    outputs = [values[name] for name in wanted] if wanted else list(model.graph.outputs)
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    found = evaluator.evaluate(
        nodes, outputs, refused=lambda node, why: reasons.setdefault(node.op_type, why)
    )
    evaluator.close()
    return {value.name: tensor for value, tensor in found.items()}, reasons, evaluator


def test_one_session_for_all():
    model = parse(
        "g () => (y, z) <float[2] a = {1, 2}> "
        "{ k = Constant <value = float[2] {3, 4}> () s = Add(a, k) y = Mul(s, a) z = Neg(y) }"
    )
    found, reasons, evaluator = evaluate(model)
    assert found["y"].numpy().tolist() == [4, 12]
    assert found["z"].numpy().tolist() == [-4, -12]
    assert (reasons, evaluator.sessions) == ({}, 1)


def test_only_requested_outputs_are_computed():
    model = parse("g () => (z) <float[2] a = {1, 2}> { y = Neg(a) z = Neg(y) }")
    assert set(evaluate(model)[0]) == {"z"}
    assert set(evaluate(model, ["y"])[0]) == {"y"}
    assert evaluate(model, ["y", "z"])[0]["y"].numpy().tolist() == [-1, -2]


def one_node(op, tensor, *, opset=21, **attributes):
    """``y = op(x)`` with ``x`` an initializer."""
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("y")])
    graph.initializer.append(tensor)
    graph.initializer[0].name = "x"
    opsets = [helper.make_opsetid("", opset)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_low_precision_floats_keep_their_type(name):
    x = np.array([1.5, -2, np.inf, 0.0078125], np.float32).astype(getattr(ml_dtypes, name))
    found, reasons, _ = evaluate(one_node("Identity", numpy_helper.from_array(x)))
    assert reasons == {}
    assert found["y"].dtype.numpy() == x.dtype
    assert found["y"].numpy().tobytes() == x.tobytes()


@pytest.mark.parametrize("name", ["INT4", "UINT4", "BOOL", "FLOAT16", "UINT64", "BFLOAT16", "FLOAT8E5M2"])
def test_casts_give_every_type(name):
    x = np.array([0, 1, 5, 7, 3], np.float32)
    code = TensorProto.DataType.Value(name)
    found, reasons, _ = evaluate(one_node("Cast", numpy_helper.from_array(x), to=code))
    assert reasons == {}
    assert found["y"].dtype == ir.DataType[name]
    assert found["y"].numpy().astype(np.float32).tolist() == (
        [0, 1, 1, 1, 1] if name == "BOOL" else x.tolist()
    )


@pytest.mark.parametrize("name", ["INT4", "UINT4"])
@pytest.mark.parametrize("size", [7, 200_001])
def test_packed_constants_are_read(name, size):
    numbers = np.random.default_rng(0).integers(0, 8, size)
    x = helper.make_tensor("x", TensorProto.DataType.Value(name), [size], numbers)
    found, reasons, _ = evaluate(one_node("Cast", x, to=TensorProto.FLOAT))
    assert reasons == {}
    np.testing.assert_array_equal(found["y"].numpy(), numbers)


def test_strings():
    x = np.array(["a", "", "ü"], dtype=object)
    found, reasons, _ = evaluate(one_node("Identity", numpy_helper.from_array(x)))
    assert reasons == {}
    assert found["y"].dtype == ir.DataType.STRING
    assert list(found["y"].string_data()) == [b"a", b"", "ü".encode()]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
def test_large_constants(dtype):
    x = (np.arange(100_000) % 1000).astype(dtype).reshape(100, 1000)
    found, reasons, _ = evaluate(one_node("Transpose", numpy_helper.from_array(x), perm=[1, 0]))
    assert reasons == {}
    assert found["y"].numpy().tobytes() == np.ascontiguousarray(x.T).tobytes()


def test_scalars_and_empty_tensors():
    model = parse(
        "g () => (a, b, c) <float s = {2}, float[0] e = {}, int64[1] z = {0}> "
        "{ a = Neg(s) b = Neg(e) c = ConstantOfShape(z) }"
    )
    found, reasons, _ = evaluate(model)
    assert reasons == {}
    assert [found[name].numpy().shape for name in "abc"] == [(), (0,), (0,)]


def test_absent_inputs_and_outputs():
    model = parse(
        "g () => (y, d) <float[1, 3] x = {3, 1, 2}, float[3] s = {1, 1, 1}, float hi = {2}> "
        "{ y = Clip (x, , hi) n, , d = LayerNormalization (x, s) }"
    )
    found, reasons, _ = evaluate(model)
    assert reasons == {}
    assert found["y"].numpy().tolist() == [[2, 1, 2]]
    assert found["d"].numpy() == pytest.approx(1 / np.std([3, 1, 2]), rel=1e-3)


def test_sequences_are_computed_but_not_returned():
    model = parse(
        "g () => (y, s) <float[2] a = {1, 2}, int64 one = {1}> "
        "{ s = SequenceConstruct(a, a) y = SequenceAt(s, one) }"
    )
    found, _, _ = evaluate(model)
    assert set(found) == {"y"}
    assert found["y"].numpy().tolist() == [1, 2]


# Nodes that can not be computed -------------------------------------------------------------------------


def test_failing_nodes_are_skipped_and_others_folded():
    lines = [f"a{i} = Add(a{i - 1}, one)" for i in range(1, 40)]
    lines[20] = "bad = com.example.Thing(a20) a21 = Add(a20, one) worse = Neg(bad)"
    model = parse(
        f"g () => (a39, bad, worse) <float[1] a0 = {{0}}, float[1] one = {{1}}> {{ {' '.join(lines)} }}",
        domains=', "com.example" : 1',
    )
    found, reasons, evaluator = evaluate(model)
    assert found["a39"].numpy().tolist() == [39]
    assert set(found) == {"a39"}
    assert set(reasons) == {"Thing", "Neg"}
    assert "an operand could not be computed" in reasons["Neg"]
    assert evaluator.sessions < 20


def test_a_node_that_fails_when_run():
    model = parse(
        "g () => (y, z) <float[2] x = {1, 2}, int64[1] i = {5}, int64[1] j = {1}> "
        "{ y = Gather(x, i) z = Gather(x, j) }"
    )
    found, reasons, _ = evaluate(model)
    assert found["z"].numpy().tolist() == [2]
    assert "out of data bounds" in reasons["Gather"]


def test_inputs_that_are_not_constant():
    model = parse("g (float[2] x) => (y, z) <float[2] a = {1, 2}> { y = Neg(x) z = Neg(a) }")
    found, _, _ = evaluate(model)
    assert set(found) == {"z"}


def test_other_constants_may_be_declared():
    model = parse("g (float[2] x) => (y) { y = Neg(x) }")
    given = ir.tensor(np.array([5, 6], np.float32))
    x = model.graph.inputs[0]
    found, _, _ = evaluate(model, constant=lambda value: given if value is x else None)
    assert found["y"].numpy().tolist() == [-5, -6]


# Nodes that may crash the process ----------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_divisions_that_crash_are_refused(op):
    model = parse(
        f"g () => (a, b, c, d) <int64[2] x = {{{LEAST}, 6}}, int64[2] m = {{-1, -1}}, int64[2] z = {{1, 0}}, "
        f"int64[2] ok = {{2, 3}}, int64[2] small = {{4, 6}}> "
        f"{{ a = {op}(x, m) b = {op}(x, z) c = {op}(x, ok) d = {op}(small, m) }}"
    )
    found, reasons, _ = evaluate(model)
    assert set(found) == {"c", "d"}
    assert reasons == {op: "it divides by zero, or overflows"}


def test_divisors_are_computed_first():
    model = parse(
        f"g () => (y, z) <int64[1] x = {{{LEAST}}}, int64[1] a = {{2}}, int64[1] b = {{3}}> "
        "{ d = Sub(a, b) y = Div(x, d) e = Add(a, b) z = Div(x, e) }"
    )
    found, reasons, evaluator = evaluate(model)
    assert found["z"].numpy().tolist() == [-(2**63 // 5)] or found["z"].numpy().tolist() == [
        -(2**63 // 5) - 1
    ]
    assert reasons == {"Div": "it divides by zero, or overflows"}
    assert evaluator.sessions == 2


def test_float_divisions_need_no_stage():
    model = parse("g () => (y) <float[1] x = {1}, float[1] a = {0}> { d = Neg(a) y = Div(x, d) }")
    found, _, evaluator = evaluate(model)
    assert found["y"].numpy().tolist() == [-np.inf]
    assert evaluator.sessions == 1


@pytest.mark.parametrize(
    "body",
    [
        "<int64[1] s = {1000000000000}> { y = ConstantOfShape(s) }",
        "<int64[2] s = {1000000, 1000000}, float x = {1}> { y = Expand(x, s) }",
        "<int64[1] s = {1000000000000}, float[1] x = {1}> { y = Tile(x, s) }",
        "<int64 a = {0}, int64 b = {1000000000000}, int64 c = {1}> { y = Range(a, b, c) }",
        "<int64[2] p = {0, 1000000000000}, float[1] x = {1}> { y = Pad(x, p) }",
        "<int64[1] i = {1}, int64 d = {1000000000000}, float[2] v = {0, 1}> { y = OneHot(i, d, v) }",
        "<float[1, 1, 1, 1] x = {1}, float[4] s = {1, 1, 1000000, 1000000}> { y = Resize(x, , s) }",
        "<int64[1] a = {1000000}> { s = Mul(a, a) y = ConstantOfShape(s) }",
    ],
)
def test_huge_results_are_not_computed(body):
    found, reasons, evaluator = evaluate(parse(f"g () => (y) {body}"))
    assert found == {}
    (reason,) = reasons.values()
    assert reason.startswith("the result would take")
    assert evaluator.sessions <= 1


def test_results_over_the_limit_are_dropped():
    model = parse(
        "g () => (y, z) <int64[1] s = {100}> "
        "{ x = ConstantOfShape(s) y = Concat <axis = 0> (x, x, x) z = Neg(s) }"
    )
    found, _, _ = evaluate(model, limit=1000)
    assert set(found) == {"z"}


def rnn(hidden, steps):
    w, r = ", ".join(["0.1"] * 3 * hidden), ", ".join(["0.2"] * 3 * hidden * hidden)
    x = ", ".join(["1"] * steps)
    return parse(
        f"g () => (y, z) <float[{steps}, 1, 1] x = {{{x}}}, float[1, {3 * hidden}, 1] w = {{{w}}}, "
        f"float[1, {3 * hidden}, {hidden}] r = {{{r}}}, float[1] one = {{1}}> "
        f"{{ y = GRU <hidden_size = {hidden}> (x, w, r) z = Neg(one) }}"
    )


def test_operators_that_crash_on_empty_tensors_run_in_a_child(child):
    found, reasons, _ = evaluate(rnn(2, 0), child=child)
    assert set(found) == {"z"}
    assert "crashed" in reasons["GRU"] or "failed" in reasons["GRU"]
    found, reasons, _ = evaluate(rnn(2, 3), child=child)
    assert found["y"].numpy().shape == (3, 1, 1, 2)
    assert reasons == {}


LOOP = """g () => (y, z) <int64 n = {%s}, bool go = {1}, float[1] x = {1}, float[1] two = {2}> {
    z = Neg(x)
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[1] s) => (bool d, float[1] t) {
        d = Identity(c)
        t = Mul(s, two)
    }>
}"""


def test_loops_run_in_a_child(child):
    found, reasons, _ = evaluate(parse(LOOP % 5), child=child)
    assert reasons == {}
    assert found["y"].numpy().tolist() == [32]


def test_endless_loops_are_stopped(child):
    found, reasons, _ = evaluate(parse(LOOP % (2**62)), child=child, timeout=0.5)
    assert set(found) == {"z"}
    assert "more than 0.5 s" in reasons["Loop"]


def test_branches_run_in_this_process():
    model = parse(
        """g () => (y) <bool c = {1}, float[1] x = {1}, float[1] other = {5}> {
            n = Neg(x)
            y = If (c) <
                then_branch = t () => (float[1] a) { a = Add(n, other) },
                else_branch = e () => (float[1] b) { b = Neg(other) }
            >
        }"""
    )
    found, reasons, evaluator = evaluate(model)
    assert reasons == {}
    assert found["y"].numpy().tolist() == [4]
    assert evaluator._child is None


def test_a_division_inside_a_branch_is_isolated(child):
    model = parse(
        f"""g () => (y, z) <bool c = {{1}}, int64[1] x = {{{LEAST}}}, int64[1] m = {{-1}}> {{
            z = Neg(m)
            y = If (c) <
                then_branch = t () => (int64[1] a) {{ a = Div(x, m) }},
                else_branch = e () => (int64[1] b) {{ b = Neg(x) }}
            >
        }}"""
    )
    found, reasons, _ = evaluate(model, child=child)
    assert set(found) == {"z"}
    assert "SIGFPE" in reasons["If"]


# Functions and scopes -----------------------------------------------------------------------------

FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2] v) => (y, w) <float[2] x = {1, 2}> {
    y = local.twice(x)
    w = local.twice(v)
}
<domain: "local", opset_import: ["" : 13]>
twice (a) => (b) {
    k = Constant <value = float[1] {2}> ()
    axes = Constant <value = int64[1] {0}> ()
    m = Mul(a, k)
    u = Unsqueeze(m, axes)
    b = Squeeze(u, axes)
}"""


def test_calls_of_functions():
    model = parse(FUNCTIONS)
    evaluator = Evaluator.of(model)
    found = evaluator.evaluate([model.graph.node(0)], model.graph.outputs)
    assert [tensor.numpy().tolist() for tensor in found.values()] == [[2, 4]]


def test_nodes_inside_functions_use_their_imports():
    model = parse(
        FUNCTIONS.replace("m = Mul(a, k)", "m = Mul(a, j) j = Neg(k)").replace(
            "m = Mul(a, j) j = Neg(k)", "j = Neg(k) m = Mul(a, j)"
        )
    )
    function = next(iter(model.functions.values()))
    (neg,) = (node for node in function.graph if node.op_type == "Neg")
    found = Evaluator.of(model).evaluate([neg], neg.outputs)
    assert [tensor.numpy().tolist() for tensor in found.values()] == [[-2]]


def test_parameters_of_functions_are_not_known():
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2] x) => (y) { y = local.f <to = 6> (x) }
        <domain: "local", opset_import: ["" : 17]>
        f <to> (a) => (b) {
            k = Constant <value = float[1] {2}> ()
            c = Cast <to: int = @to> (k)
            b = Cast <to: int = @to> (a)
        }"""
    )
    function = next(iter(model.functions.values()))
    cast = next(node for node in function.graph if node.op_type == "Cast")
    reasons = []
    assert (
        Evaluator.of(model).evaluate([cast], cast.outputs, refused=lambda node, why: reasons.append(why))
        == {}
    )
    assert reasons == ["an attribute is a parameter of its function"]


@pytest.mark.parametrize("ir_version", [3, 7, 13])
def test_any_ir_version(ir_version):
    model = parse("g () => (y) <float[2] a = {1, 2}> { y = Neg(a) }", ir_version=8)
    model.ir_version = ir_version
    assert evaluate(model)[0]["y"].numpy().tolist() == [-1, -2]


def test_an_opset_beyond_the_runtime():
    model = parse("g () => (y) <float[2] a = {1, 2}> { y = Neg(a) }", opset=17)
    model.graph.opset_imports[""] = 999
    found, reasons, _ = evaluate(model)
    assert found == {}
    assert "opset 999 of ai.onnx is unknown" in reasons["Neg"]


def test_long_chains():
    lines = " ".join(f"a{i} = Add(a{i - 1}, one)" for i in range(1, 3000))
    found, reasons, evaluator = evaluate(
        parse(f"g () => (a2999) <float[1] a0 = {{0}}, float[1] one = {{1}}> {{ {lines} }}")
    )
    assert found["a2999"].numpy().tolist() == [2999]
    assert (reasons, evaluator.sessions) == ({}, 1)


def test_the_model_is_not_modified():
    model = parse("g () => (y) <float[2] a = {1, 2}> { b = Neg(a) y = Neg(b) }")
    before = ir.to_bytes(model)
    uses = {value: list(value.uses()) for node in model.graph for value in node.outputs}
    evaluate(model)
    assert ir.to_bytes(model) == before
    assert uses == {value: list(value.uses()) for node in model.graph for value in node.outputs}
    assert len(list(model.graph.initializers["a"].uses())) == 1


def test_operators_without_known_risks_may_crash():
    model = parse(
        "g () => (y, z) <float[2, 2] x = {1, 2, 3, 4}, float a = {1}> "
        '{ y = Einsum <equation = "->ij"> (a) z = Einsum <equation = "ij->ji"> (x) }'
    )
    found, reasons, _ = evaluate(model)
    assert found["z"].numpy().tolist() == [[1, 3], [2, 4]] and set(found) == {"z"}
    assert "crashed" in reasons["Einsum"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [("t = Transpose(x) y = Mul(t, x)", True), ("y = MatMul(x, x)", False), ("y = ReduceSum(x)", False)],
)
def test_only_plain_operators_run_in_this_process(node, expected, monkeypatch):
    here = []
    monkeypatch.setattr(
        "graphopt.folding.constant_evaluator.run_constant_model", lambda *_: here.append(1) or {}
    )
    monkeypatch.setattr(Child, "call", lambda *_, **__: {})
    evaluate(parse(f"g () => (y) <float[2, 2] x = {{1, 2, 3, 4}}> {{ {node} }}"))
    assert bool(here) == expected
