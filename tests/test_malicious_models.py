"""Malicious models: each yields a correct result or a clear refusal, in bounded time and memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt import ir
from graphopt.errors import InvalidModel

HEAD = '<ir_version: 9, opset_import: ["" : 17, "l" : 1]>'
DOMAIN = '<domain: "l", opset_import: ["" : 17, "l" : 1]>'
NODE = helper.make_node


def text(body: str, weights: str = "", x: str = "float[2] x", y: str = "float[N] y", more: str = "") -> str:
    given = f"<{weights}>" if weights else ""
    return f"{HEAD} g ({x}) => ({y}) {given} {{ {body} }} {more}"


#: Huge results, by the operators that compute them from constants.
HUGE = {
    "expand": ("e = Expand(k, s)", "float k = {1.0}, int64[3] s = {100000, 100000, 100}"),
    "tile": ("e = Tile(k, s)", "float[1] k = {1.0}, int64[1] s = {4000000000000}"),
    "fill": ("e = ConstantOfShape(s)", "int64[2] s = {4000000000, 4000000000}"),
    "range": (
        "i = Range(a, b, d) e = Cast<to=1>(i)",
        "int64 a = {0}, int64 b = {9223372036854775807}, int64 d = {1}",
    ),
    "pad": ("e = Pad(k, s)", "float[2] k = {1.0, 2.0}, int64[2] s = {4000000000000, 0}"),
    "one-hot": (
        "e = OneHot(i, d, v)",
        "int64[2] i = {1, 2}, int64 d = {4000000000000}, float[2] v = {0.0, 1.0}",
    ),
    "eye": ("c = ConstantOfShape(s) e = EyeLike(c)", "int64[2] s = {3000000, 3000000}"),
    "doubled": (
        "c0 = Identity(k) " + " ".join(f"c{i + 1} = Concat<axis=0>(c{i}, c{i})" for i in range(40))
        + " e = Identity(c40)",
        "float[2] k = {1.0, 2.0}",
    ),
    "product": (
        "a = Expand(k, s) b = Expand(k, t) p = MatMul(a, b) e = MatMul(p, a)",
        "float k = {1.0}, int64[2] s = {1000000, 1}, int64[2] t = {1, 1000000}",
    ),
    "products": (
        "c0 = Expand(k, s) " + " ".join(f"c{i + 1} = MatMul(c{i}, c{i})" for i in range(40)) + " e = Sin(c40)",
        "float k = {0.0001}, int64[2] s = {6000, 6000}",
    ),
    "outer product": (
        "a = Expand(k, s) b = Transpose(a) c = Add(a, b) e = Sin(c)",
        "float k = {1.0}, int64[2] s = {50000, 1}",
    ),
    "huge strings": (
        "t = Expand(k, s) q = Equal(t, t) e = Cast<to=1>(q)",
        'string[1] k = {"abc"}, int64[1] s = {1000000000000}',
    ),
}  # fmt: skip

#: Integers that can't be divided, and results outside their type.
NUMBERS = {
    "least by -1": "Div(a, b)|int64[2] a = {-9223372036854775808, 5}, int64[2] b = {-1, -1}",
    "least int32 by -1": "Div(a, b)|int32[2] a = {-2147483648, 5}, int32[2] b = {-1, -1}",
    "by 0": "Div(a, b)|int64[2] a = {1, 5}, int64[2] b = {0, 1}",
    "modulo 0": "Mod(a, b)|int32[2] a = {1, 5}, int32[2] b = {0, 1}",
    "least modulo -1": "Mod(a, b)|int64[2] a = {-9223372036854775808, 5}, int64[2] b = {-1, 1}",
    "far shift": 'BitShift<direction="LEFT">(a, b)|uint64[2] a = {1, 5}, uint64[2] b = {64, 1000}',
    "power": "Pow(a, b)|int64[2] a = {0, 5}, int64[2] b = {-1, 1000}",
}

_BODY = "<body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) { d = Identity(c) u = Sin(v) }>"
FUNCTIONS = f"{DOMAIN} f0 (v) => (w) {{ w = Neg(v) }} " + " ".join(
    f"{DOMAIN} f{i} (v) => (w) {{ a = l.f{i - 1}(v) b = l.f{i - 1}(v) w = Add(a, b) }}" for i in range(1, 40)
)
RIGHT = {
    **{
        name: text(f"{body} r = ReduceSum<keepdims=0>(e) y = Add(x, r)", weights)
        for name, (body, weights) in HUGE.items()
    },
    **{
        name: text(
            f"q = {entry.split('|')[0]} z = Cast<to=1>(q) y = Add(x, z)", entry.split("|")[1], y="float[2] y"
        )
        for name, entry in NUMBERS.items()
    },
    "loop": text(
        f"w = Loop(n, t, k){_BODY} y = Add(x, w)",
        "int64 n = {9223372036854775807}, bool t = {1}, float[2] k = {1.0, 2.0}",
    ),
    "loop over inputs": text(f"y = Loop(n, t, x){_BODY}", "int64 n = {1000000000000}, bool t = {1}"),
    "list": text(
        "e = SequenceEmpty() q = Loop(n, t, e)<body = b (int64 i, bool c, seq(float[K]) v) =>"
        " (bool d, seq(float[K]) u) { d = Identity(c) r = Expand(k, s) u = SequenceInsert(v, r) }>"
        " z = ConcatFromSequence<axis = 0>(q) f = ReduceSum<keepdims = 0>(z) y = Add(x, f)",
        "int64 n = {1000000000000}, bool t = {1}, float k = {1.0}, int64[1] s = {10000000}",
    ),
    "dims that overflow": text(
        "f = Flatten(x) s = Shape(f) m = Mul(s, s) c = Size(x) z = Mul(m, c) y = Cast<to=1>(z)",
        x="float[4611686018427387904, 4611686018427387904, 4] x",
    ),
    "reshaped dims that overflow": text(
        "r = Reshape(x, s) y = Neg(r)",
        "int64[2] s = {-1, 4611686018427387904}",
        x="float[4611686018427387904, 4611686018427387904] x",
        y="float[A, B] y",
    ),
    "functions that blow up": text("y = l.f39(x)", more=FUNCTIONS, y="float[2] y"),
    "constant functions that blow up": text("z = l.f39(k) y = Add(x, z)", "float[2] k = {1.0, 2.0}", more=FUNCTIONS),
    "a permutation of nothing": text("e = Transpose<perm=[9223372036854775807]>(x) y = Transpose<perm=[7]>(e)"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_models_that_are_declared_to_be_huge_stay_small(name: str) -> None:
    loaded = ir.from_proto(onnx.parser.parse_model(RIGHT[name]))
    model, _ = graphopt.optimize(loaded, verify=False)
    assert len(ir.to_bytes(model)) <= len(ir.to_bytes(loaded)) + 100_000


def _slow(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    [
        "expand",
        "least by -1",
        "dims that overflow",
        *_slow("product", "products", "list"),
        *_slow("range", "outer product", "loop", "loop over inputs", "functions that blow up"),
        *_slow("constant functions that blow up", "doubled"),
    ],
)
def test_command_line_survives_hostile_models(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(RIGHT[name]), path)
    command = [
        sys.executable,
        "-m",
        "graphopt",
        "optimize",
        str(path),
        "-o",
        str(tmp_path / "out.onnx"),
        "--json",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parent.parent
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime < 60
    )  # CPU time of all its processes
    assert "not verified" in done.stderr
    assert json.loads(done.stdout)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 << 20  # KiB


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("y = l.f(x)", f"{DOMAIN} f (v) => (w) {{ a = l.f(v) w = Neg(a) }}"),
        ("y = l.f(x)", f"{DOMAIN} f (v) => (w) {{ w = l.h(v) }} {DOMAIN} h (v) => (w) {{ w = l.f(v) }}"),
    ],
)
def test_recursive_functions_are_refused(body: str, more: str) -> None:
    with pytest.raises(InvalidModel, match="recursive functions"):
        ir.from_proto(onnx.parser.parse_model(text(body, more=more)))


def test_gigantic_tensors_without_contents_are_refused() -> None:
    for tensor in (
        TensorProto(name="w", data_type=TensorProto.STRING, dims=[1 << 62]),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 62, 4], raw_data=b""),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 62, 4], raw_data=bytes(3)),
    ):
        proto = onnx.parser.parse_model(text("y = Neg(x)"))
        proto.graph.initializer.append(tensor)
        with pytest.raises(InvalidModel, match=r"requires?"):
            ir.from_proto(proto)


def nested(depth: int) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph([NODE("Neg", ["x"], ["o"])], "g", [], [info("o", 1, [2])])
    for level in range(depth):
        other = helper.make_graph([NODE("Abs", ["x"], [f"e{level}"])], "e", [], [info(f"e{level}", 1, [2])])
        choice = NODE("If", ["c"], [f"o{level}"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([choice], f"g{level}", [], [info(f"o{level}", 1, [2])])
    graph.input.extend([info("x", 1, [2]), info("c", TensorProto.BOOL, [])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_bodies_in_bodies() -> None:
    """Protobuf reads no more than 100 levels of messages: 32 of bodies."""
    model, _ = graphopt.optimize(ir.from_proto(nested(30)), verify=False)
    assert len(model.graph) == 1


def test_odd_names() -> None:
    odd = 'a\n\t"\x00\\ \u202e\U0001f600[red]/../../x' * 20
    proto = onnx.parser.parse_model(text("a = Neg(x) y = Abs(a)"))
    proto.graph.name = proto.graph.node[0].name = proto.graph.node[0].output[0] = odd
    proto.graph.node[1].input[0] = odd
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "\x1b[31m"
    result = graphopt.optimize(ir.from_proto(proto), verify=True)
    assert result.verdict is not None and result.verdict.ok
    assert [value.name for value in result.model.graph.inputs] == ["\x1b[31m"]


def test_domains_that_are_no_text_are_refused(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(text("y = Neg(x)"))
    proto.opset_import[1].domain = "nobody"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"nobody", b"nob\xffdy"))
    with pytest.raises(InvalidModel, match="not UTF-8"):
        ir.load(path)


@pytest.mark.slow
def test_a_long_chain() -> None:
    nodes = [NODE(("Neg", "Abs", "Sigmoid")[i % 3], [f"v{i}"], [f"v{i + 1}"]) for i in range(50_000)]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("v0", 1, ["N"])], [info("v50000", 1, ["N"])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model, _ = graphopt.optimize(ir.from_proto(proto), verify=False)
    assert len(model.graph) < 50_000


MALFORMED = {
    "a type that is none": "a = Cast<to = 0>(x) b = Cast<to = 99>(a) c = Cast<to = 1>(b) y = Add(c, c)",
    "more labels than axes": 'a = Transpose(x) y = Einsum<equation = "bij,bjk->bik">(x, a)',
    "a channel axis that is not there": "a = Conv(x, j) y = Mul(a, j)",
    "constants of another type": "a = Add(x, i) y = Add(a, i)",
    "a body with more inputs than its node": "y, s = Scan<num_scan_inputs = 1, body = b (float p, float r) =>"
    " (float q, float t) { q = Add(p, r) t = Reshape(q, q) }>(x)",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_content_without_semantics_is_preserved(name: str) -> None:
    """onnxruntime would not load these; nothing is dropped, as no rule or pass stumbles over them."""
    proto = onnx.parser.parse_model(text(MALFORMED[name], "float[1] j = {2.0}, int64[2] i = {1, 2}"))
    _, report = graphopt.optimize(ir.from_proto(proto))
    assert not report.dropped


def test_equation_that_is_not_utf8_is_not_rewritten() -> None:
    proto = onnx.parser.parse_model(text('y = Einsum<equation = "i->i">(x)'))
    proto.graph.node[0].attribute[0].s = b"\xff->\xff"
    model, report = graphopt.optimize(ir.from_proto(proto), verify=False)
    assert [node.op_type for node in model.graph] == ["Einsum"] and not report.dropped


def test_inputs_of_unknown_type_are_not_generated() -> None:
    proto = onnx.parser.parse_model(text("y = Identity(x)"))
    proto.graph.input[0].type.tensor_type.elem_type = 99
    proto.graph.output[0].type.tensor_type.elem_type = 99
    result = graphopt.optimize(ir.from_proto(proto))
    assert result.verdict is not None and "can't be fed" in (result.verdict.unverifiable or "")
