"""merge-functions: equal functions become one, and facts of calls hold in functions."""

from __future__ import annotations

import onnx.parser

import graphopt
from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline

TWO = """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {{ y = d.f (x) z = {second} (x) }}
<domain: "d", opset_import: ["" : 17]> f (a) => (b) {{ t = Exp (a) b = Neg (t) }}
<domain: "{domain}", opset_import: ["" : {opset}]> h (p) => (q) {{ s = Exp (p) q = {op} (s) }}"""


def functions_after(**parts: object) -> list[str]:
    given = {"second": "d.h", "domain": "d", "opset": 17, "op": "Neg", **parts}
    model = parse(TWO.format(**given), domains=', "d" : 1, "e" : 1')
    run_pipeline(model, "merge-functions")
    assert graphopt.verify(parse(TWO.format(**given), domains=', "d" : 1, "e" : 1'), model).ok
    return [f"{node.domain}.{node.op_type}" for node in model.graph] + [
        f.name for f in model.functions.values()
    ]


def test_equal_functions_become_the_first() -> None:
    assert functions_after() == ["d.f", "d.f", "f"]


def test_different_functions_are_not_merged() -> None:
    assert functions_after(op="Abs") == ["d.f", "d.h", "f", "h"]
    assert functions_after(second="e.h", domain="e") == ["d.f", "e.h", "f", "h"]


def test_callers_of_equal_functions_are_equal() -> None:
    model = parse(
        """g (float[N] x) => (float[N] y, float[N] z) { y = d.outer1 (x) z = d.outer2 (x) }
        <domain: "d", opset_import: ["" : 17]> inner1 (a) => (b) { b = Neg (a) }
        <domain: "d", opset_import: ["" : 17]> inner2 (a) => (b) { b = Neg (a) }
        <domain: "d", opset_import: ["" : 17, "d" : 1]> outer1 (a) => (b) { t = d.inner1 (a) b = Exp (t) }
        <domain: "d", opset_import: ["" : 17, "d" : 1]> outer2 (a) => (b) { t = d.inner2 (a) b = Exp (t) }""",
        domains=', "d" : 1',
    )
    run_pipeline(model, "merge-functions")
    assert [function.name for function in model.functions.values()] == ["inner1", "outer1"]
    assert ops(model) == ["outer1", "outer1"]


def test_functions_named_like_operators_of_onnxruntime_are_not_merged() -> None:
    model = parse(
        """g (float[N] x) => (float[N] y, float[N] z) { y = com.microsoft.Gelu (x) z = com.microsoft.F (x) }
        <domain: "com.microsoft", opset_import: ["" : 17]> F (a) => (b) { b = Neg (a) }
        <domain: "com.microsoft", opset_import: ["" : 17]> Gelu (a) => (b) { b = Neg (a) }""",
        domains=', "com.microsoft" : 1',
    )
    run_pipeline(model, "merge-functions")
    assert len(model.functions) == 2


CALLS = """g (float[N,4] x, float[N,{columns}] w) => (float[N,4] y, float[N,{columns}] z) {{
    y = d.f (x)
    z = d.f (w)
}}
<domain: "d", opset_import: ["" : 17]> f (a) => (b) {{
    s = Shape (a)
    t = Neg (a)
    b = Reshape (t, s)
}}"""


def inside(columns: int, pipeline: str = "O2") -> list[str]:
    model = parse(CALLS.format(columns=columns), domains=', "d" : 1')
    result, report = graphopt.optimize(model, pipeline=pipeline)
    assert report.verdict is not None and report.verdict.ok
    return [node.op_type for node in next(iter(result.functions.values()))]


def test_facts_common_to_all_calls_hold_inside_functions() -> None:
    text = """g (float[N,4] x) => (float[N,4] y) {{ a = d.f (x) y = d.f ({second}) }}
    <domain: "d", opset_import: ["" : 17]> f (a) => (b) {{
        zero = Constant <value = int64[1] {{0}}> ()
        four = Constant <value = int64[1] {{{end}}}> ()
        one = Constant <value = int64[1] {{1}}> ()
        b = Slice (a, zero, four, one)
    }}"""
    for end, expected in ((4, ["Identity"]), (3, ["Slice"])):
        model = parse(text.format(second="a", end=end), domains=', "d" : 1')
        run_pipeline(model, "O2")
        found = [node.op_type for node in next(iter(model.functions.values())) if node.op_type != "Constant"]
        assert found == expected


def test_calls_with_different_shapes_share_common_facts() -> None:
    assert inside(4) == inside(7) == ["Neg"]
    model = parse(
        """g (float[2,4] x, float[2,5] w) => (float[2,4] y, float[2,5] z) { y = d.f (x) z = d.f (w) }
        <domain: "d", opset_import: ["" : 17]> f (a) => (b) {
            n = Constant <value = int64[2] {-1, 4}> ()
            m = Shape (a)
            t = Reshape (a, m)
            b = Neg (t)
        }""",
        domains=', "d" : 1',
    )
    cx = run_pipeline(model, "")[1]
    (function,) = model.functions.values()
    shape = cx.shape(function.inputs[0])
    assert shape is not None and shape[0] == 2 and not isinstance(shape[1], int)


def test_merging_invalidates_facts_of_fewer_calls() -> None:
    model = parse(
        """g (float[N,4] x, float[N,5] w) => (float[N,4] y, float[N,5] z) { y = d.f (x) z = d.h (w) }
        <domain: "d", opset_import: ["" : 17]> f (a) => (b) { b = Neg (a) }
        <domain: "d", opset_import: ["" : 17]> h (a) => (b) { b = Neg (a) }""",
        domains=', "d" : 1',
    )
    cx = run_pipeline(model, "")[1]
    kept = next(iter(model.functions.values()))
    assert cx.shape(kept.inputs[0])[1] == 4  # type: ignore[index]
    from graphopt.transforms.functions.merge_functions import MergeFunctions

    MergeFunctions().run(model, cx)
    assert not isinstance(cx.shape(kept.inputs[0])[1], int)  # type: ignore[index]
    assert isinstance(ir.to_bytes(model), bytes)


def test_training_info_may_call_any_function() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "d" : 1, "e" : 1]> g (float[N,4] x) => (float[N,4] y) { y = d.f (x) }
        <domain: "d", opset_import: ["" : 17]> f (a) => (b) { s = Shape (a) t = Neg (a) b = Reshape (t, s) }
        <domain: "d", opset_import: ["" : 17]> h (a) => (b) { b = Neg (a) }"""
    )
    proto.training_info.add().algorithm.node.add(op_type="h", domain="d", input=["y"], output=["z"])
    model = ir.from_proto(proto)
    cx = run_pipeline(model, "dce,merge-functions")[1]
    assert [function.name for function in model.functions.values()] == ["f", "h"]
    assert "e" in model.graph.opset_imports
    assert cx.shape(next(iter(model.functions.values())).inputs[0]) is None


def test_overloads_that_are_built_the_same() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "d" : 1]>
    g (float[N] x) => (float[N] y, float[N] z) { y = d.f (x) z = d.f (x) }
    <domain: "d", opset_import: ["" : 17]> f (a) => (b) { b = Neg (a) }"""
    proto = onnx.parser.parse_model(text)
    proto.functions.append(proto.functions[0])
    for index, overload in enumerate(("first", "second")):
        proto.functions[index].overload = proto.graph.node[index].overload = overload
    original = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    model = ir.from_proto(proto)
    run_pipeline(model, "merge-functions")
    assert [node.overload for node in model.graph] == ["first", "first"]
    assert list(model.functions) == [("d", "f", "first")]
    assert graphopt.verify(original, model).ok


def test_native_groups_of_equal_bodies_and_other_types_are_kept_apart() -> None:
    text = """g (float[4,64] x, int32[4,64] z) => (float[4,64] y, int32[4,64] w) {
        a = Abs(x) b = Mul(a, x) y = Sub(b, a) c = Abs(z) d = Mul(c, z) w = Sub(d, c) }"""
    model = parse(text, opset=18)
    run_pipeline(model, "fuse-groups")
    names = [key[1] for key in model.functions]
    run_pipeline(model, "merge-functions")
    assert len(names) == 2 and [key[1] for key in model.functions] == names
