"""convert-opset: models in another opset are equivalent and complete, or the conversion is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Context
from graphopt.errors import ExitStatus, UnsupportedModel, UsageError, VerificationFailed
from graphopt.opset import convert
from graphopt.passes.base import Pass
from graphopt.transforms.opset.convert_opset import ConvertOpset
from tests.model_testing import ops, parse, run_pipeline


def converted(text: str, source: int, target: int, **settings: object) -> ir.Model:
    """The model for opset ``target``, verified."""
    model = parse(text, opset=source, **settings)  # type: ignore[arg-type]
    result, report = graphopt.optimize(model, pipeline="O0", target_opset=target)
    assert report.verdict is not None and report.verdict.ok and report.verdict.unverifiable is None
    assert {holder.opset_imports[""] for holder in (result.graph, *result.functions.values())} == {target}
    return result


FAMILIES: Mapping[str, tuple[int, str, list[str]]] = {
    "softmax": (
        12,
        "g (float[B,3,4] x) => (float[B,3,4] y) { y = Softmax <axis = 1> (x) }",
        ["Shape", "Flatten", "Softmax", "Reshape"],
    ),
    "softmax over the last axis": (
        9,
        "g (float[B,4] x) => (float[B,4] y) { y = Softmax <axis = 1> (x) }",
        ["Softmax"],
    ),
    "softmax, in which any dim may be 0": (
        12,
        "g (float[A,B,C,D] x) => (float[A,B,C,D] y) { y = Softmax <axis = 2> (x) }",
        ["Shape", "Flatten", "Softmax", "Reshape"],
    ),
    "an operator that onnxruntime had before ONNX": (
        11,
        """g (float[B,4] x) => (float[B,4] y) <float[4] s = {1, 2, 3, 4}> {
            y = LayerNormalization <axis = -1> (x, s, s)
        }""",
        ["LayerNormalization"],
    ),
    "hardmax": (
        9,
        "g (float[B,3,4] x) => (float[B,3,4] y) { y = Hardmax (x) }",
        ["Shape", "Flatten", "Hardmax", "Reshape"],
    ),
    "squeeze": (
        11,
        """g (float[B,1,4] x) => (float[B,4] y, float[B,1,1,4] z) {
            y = Squeeze <axes = [1]> (x)
            z = Unsqueeze <axes = [1]> (x)
        }""",
        ["Squeeze", "Unsqueeze"],
    ),
    "dropout": (7, "g (float[B,4] x) => (float[B,4] y) { y = Dropout <ratio = 0.3> (x) }", ["Dropout"]),
    "clip": (7, "g (float[B,4] x) => (float[B,4] y) { y = Clip <min = -0.5, max = 0.5> (x) }", ["Clip"]),
    "batch normalization": (
        8,
        """g (float[B,2,3] x) => (float[B,2,3] y) <float[2] s = {1, 2}, float[2] v = {3, 4}> {
            y = BatchNormalization (x, s, s, s, v)
        }""",
        ["BatchNormalization"],
    ),
    "upsample by attribute": (
        7,
        """g (float[B,1,4,4] x) => (float[B,1,p,q] y) {
            y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 1.5]> (x)
        }""",
        ["Resize"],
    ),
    "upsample by an input": (
        9,
        "g (float[B,1,2,2] x, float[4] s) => (float[p,q,u,v] y) { y = Upsample (x, s) }",
        ["Resize"],
    ),
    "resize, shrinking": (
        10,
        """g (float[B,1,6,6] x) => (float[B,1,p,q] y) <float[4] s = {1.0, 1.0, 0.6, 0.6}> {
            y = Resize (x, s)
        }""",
        ["Resize"],
    ),
    "reductions": (
        11,
        """g (float[B,3,4] x) => (float[B,4] y, float[B,3] z) {
            y = ReduceSum <axes = [1], keepdims = 0> (x)
            z = ReduceMax <axes = [-1], keepdims = 0> (x)
        }""",
        ["ReduceSum", "ReduceMax"],
    ),
    "split": (
        11,
        """g (float[B,6] x) => (float[B,2] y, float[B,4] z, float[B,3] u, float[B,3] w) {
            y, z = Split <axis = 1, split = [2, 4]> (x)
            u, w = Split <axis = 1> (x)
        }""",
        ["Split", "Split"],
    ),
    "pad, slice and top": (
        9,
        """g (float[B,6] x) => (float[B,2] y, int64[B,2] i) {
            a = Pad <pads = [0, 1, 0, 2], value = 0.5> (x)
            b = Slice <axes = [1], starts = [1], ends = [7]> (a)
            y, i = TopK <axis = 1, k = 2> (b)
        }""",
        ["Pad", "Slice", "TopK"],
    ),
    "group normalization": (
        18,
        """g (float[B,4,5] x) => (float[B,4,5] y) <float[2] s = {1, 2}, float[2] b = {3, 4}> {
            y = GroupNormalization <num_groups = 2> (x, s, b)
        }""",
        ["Reshape", "Expand", "Reshape", "Reshape", "Expand", "Reshape", "GroupNormalization"],
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_operators(name: str) -> None:
    source, text, expected = FAMILIES[name]
    assert ops(converted(text, source, 21)) == expected


OLDER: Mapping[str, tuple[int, int, str, list[str]]] = {
    "only types were added": (
        17,
        7,
        "g (float[B,3] x) => (float[B,3] y) { a = Add (x, x) y = Relu (a) }",
        ["Add", "Relu"],
    ),
    "softmax": (
        13,
        9,
        "g (float[B,3,4] x) => (float[B,3,4] y) { y = Softmax <axis = 1> (x) }",
        ["Transpose", "Softmax", "Transpose"],
    ),
    "inputs become attributes": (
        18,
        9,
        """g (float[B,1,6] x) => (float[B,2] y, int64[B,2] i)
        <int64[1] a = {1}, int64[4] p = {0, 1, 0, 2}, int64[1] s = {1}, int64[1] e = {7}, int64[1] k = {2},
         float lo = {-1}, float hi = {1}, float r = {0.5}> {
            b = Squeeze (x, a)
            c = Pad (b, p)
            d = Slice (c, s, e, a)
            f = Clip (d, lo, hi)
            h = Dropout (f, r)
            y, i = TopK (h, k)
        }""",
        ["Squeeze", "Pad", "Slice", "Clip", "Dropout", "TopK"],
    ),
    "split into uneven parts": (
        18,
        11,
        "g (float[B,5] x) => (float[B,3] y, float[B,2] z) { y, z = Split <axis = 1, num_outputs = 2> (x) }",
        ["Split"],
    ),
    "attributes at their defaults": (
        19,
        10,
        """g (float[B,2,4] x) => (float[B,2,3] y) <float[2] s = {1, 2}> {
            a = BatchNormalization <training_mode = 0> (x, s, s, s, s)
            y = AveragePool <kernel_shape = [2]> (a)
        }""",
        ["BatchNormalization", "AveragePool"],
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_opsets(name: str) -> None:
    source, target, text, expected = OLDER[name]
    assert ops(converted(text, source, target)) == expected


def test_inputs_that_are_not_constant_become_no_attributes() -> None:
    model = parse("g (float[B,3] x, float lo) => (float[B,3] y) { y = Clip (x, lo) }", opset=11)
    with pytest.raises(UnsupportedModel, match="'min' would have to be constant"):
        graphopt.optimize(model, pipeline="O0", target_opset=10)


def test_bodies_and_names() -> None:
    model = converted(
        """g (float[B,1,4] x, bool c) => (float[B,4] y) {
            y = If (c) <
                then_branch = t () => (float[p,q] a) { a = Squeeze <axes = [1]> (x) },
                else_branch = e () => (float[r,s] b) {
                    n = Neg (x)
                    m = Softmax (n)
                    b = Squeeze <axes = [1]> (m)
                }
            >
        }""",
        11,
        17,
    )
    body = next(iter(model.graph)).attributes["else_branch"].as_graph()
    assert [node.op_type for node in body] == ["Neg", "Shape", "Flatten", "Softmax", "Reshape", "Squeeze"]
    assert [node.outputs[0].name for node in body][-2:] == ["m", "b"]


def test_functions_stay_functions() -> None:
    model = converted(
        """g (float[B,1,4] x) => (float[B,4] y) { y = d.f <ax = 1> (x) }
        <domain: "d", opset_import: ["" : 10]> f <ax> (a) => (b) {
            t = Softmax <axis: int = @ax> (a)
            m = Clip <min = 0.1> (t)
            b = Squeeze <axes = [1]> (m)
        }""",
        10,
        17,
        domains=', "d" : 1',
    )
    (function,) = model.functions.values()
    assert ops(model) == ["f"]
    assert "axes" not in [name for node in function for name in node.attributes]


def test_operators_without_an_adapter_are_reported() -> None:
    text = "g (float[B,8,1] x) => (float[B,8,2] y) { y = DFT <axis = 1> (x) }"
    model = parse(text, opset=17)
    before = ir.to_bytes(model)
    with pytest.raises(UnsupportedModel, match=r"can't be written for opset 13: DFT came with opset 17"):
        run_pipeline(model, "convert-opset{target=13}")
    assert ir.to_bytes(model) == before
    with pytest.raises(UnsupportedModel) as failure:
        graphopt.optimize(model, target_opset=13)
    assert failure.value.status is ExitStatus.UNSUPPORTED_MODEL


def test_an_attribute_of_the_function_that_becomes_an_input() -> None:
    model = parse(
        """g (float[B,1,4] x) => (float[B,4] y) { y = d.f <ax = [1]> (x) }
        <domain: "d", opset_import: ["" : 11]> f <ax> (a) => (b) { b = Squeeze <axes: ints = @ax> (a) }""",
        opset=11,
        domains=', "d" : 1',
    )
    with pytest.raises(UnsupportedModel, match=r"'axes' of Squeeze is the function's.*in function d::f"):
        run_pipeline(model, "convert-opset{target=13}")


@pytest.mark.parametrize(
    ("source", "target", "node", "default"),
    [
        (15, 12, "Softmax <axis: int = @ax>", "ax"),
        (15, 12, "Softmax <axis: int = @ax>", "ax: int = 1"),
        (15, 12, "Hardmax <axis: int = @ax>", "ax"),
        (18, 17, "Split <axis: int = @ax, num_outputs = 1>", "ax"),
        (10, 11, "Resize <mode: string = @ax>", "ax"),
    ],
)
def test_conversions_that_depend_on_function_attributes_are_refused(
    source: int, target: int, node: str, default: str
) -> None:
    operator, _, attributes = node.partition(" ")
    inputs = "a, s" if operator == "Resize" else "a"
    value = '"nearest"' if operator == "Resize" else 1
    declared = "<ax> (a) => (b)" if ":" not in default else f"<{default}> (a) => (b)"
    model = parse(
        f"""g (float[3,3] x) => (float[p,q] y) {{ y = d.f <ax = {value}> (x) }}
        <domain: "d", opset_import: ["" : {source}]> f {declared} {{
            s = Constant <value = float[2] {{0.5, 0.5}}> ()
            b = {operator} {attributes} ({inputs})
        }}""",
        opset=source,
        domains=', "d" : 1',
    )
    with pytest.raises(UnsupportedModel, match=r"is the function's, and changes.*in function d::f"):
        run_pipeline(model, f"convert-opset{{target={target}}}")


def test_types_unsupported_by_the_older_opset_are_refused() -> None:
    model = parse("g (bfloat16[B] x) => (bfloat16[B] y) { y = Relu (x) }", opset=13)
    with pytest.raises(UnsupportedModel, match=r"Relu takes no tensor\(bfloat16\) in opset 12"):
        run_pipeline(model, "convert-opset{target=12}")


_LOOP = """g (float[2] x, int64 n) => (int64 y) {{
    s = SequenceConstruct (x)
    l = Loop (n, "", s) <body = b (int64 i, bool c, seq(float[2]) a) => (bool c, seq(float[2]) d) {{
        d = {node}
    }}>
    y = SequenceLength (l)
}}"""


@pytest.mark.parametrize(
    ("text", "source", "target", "reason"),
    [
        (_LOOP.format(node="Identity (a)"), 17, 13, r"Identity takes no seq\(tensor\(float\)\) in opset 13"),
        (_LOOP.format(node="SequenceInsert (a, x)"), 13, 12, r"Loop takes no seq\(tensor\(float\)\)"),
        (
            """g (float[2] x, bool c) => (int64 y) {
                s = If (c) <then_branch = t () => (seq(float[2]) a) { a = SequenceConstruct (x) },
                    else_branch = e () => (seq(float[2]) b) { b = SequenceConstruct (x, x) }>
                y = SequenceLength (s)
            }""",
            13,
            12,
            r"If gives no seq\(tensor\(float\)\) in opset 12",
        ),
        (
            """g (float[2] x, int64 n) => (float[p,2] y) {
                y = Loop (n, "") <body = b (int64 i, bool c) => (bool c, float[2] d) { d = Neg (x) }>
            }""",
            11,
            10,
            "Loop can't have 2 inputs in opset 10",
        ),
        (
            """g (float[2] x) => (float[2] y) { y = d.f (x) }
            <domain: "d", opset_import: ["" : 9]> f (a) => (b) {
                s = Constant <value = int64[1] {-1}> ()
                b = Reshape (a, s)
            }""",
            9,
            7,
            r"Constant gives no tensor\(int64\) in opset 7.*in function d::f",
        ),
    ],
)
def test_nodes_that_older_definitions_cannot_express_are_refused(
    text: str, source: int, target: int, reason: str
) -> None:
    model = parse(text, opset=source, domains=', "d" : 1' if "d.f" in text else "")
    with pytest.raises(UnsupportedModel, match=reason):
        run_pipeline(model, f"convert-opset{{target={target}}}")


def test_constants_of_types_that_an_older_opset_lacks_become_initializers() -> None:
    text = """g (float[2] x) => (float[1,2] y) {
        s = Constant <value = int64[2] {1, 2}> ()
        y = Reshape (x, s)
    }"""
    assert ops(converted(text, 9, 7)) == ["Reshape"]


def test_the_ir_version_is_raised_where_the_opset_needs_it() -> None:
    text = "g (float[B,3] x, float[3] w) => (float[B,3] y) <float[3] w = {1, 2, 3}> { y = Mul (x, w) }"
    model = converted(text, 8, 13, ir_version=3)
    assert model.ir_version == 7
    assert [value.name for value in model.graph.inputs] == ["x"]  # w could not be fed, and still can't
    assert converted(text, 15, 16, ir_version=10).ir_version == 10


def test_only_small_constants_are_passed_to_the_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ir.tensor(np.ones((4, 5000), np.float32), name="w")
    model = parse(
        "g (float[B,4] x, float[4,5000] w) => (float[B,5000] y) { a = MatMul (x, w) y = Softmax (a) }"
    )
    model.graph.opset_imports[""] = 11
    value = model.graph.inputs.pop()
    value.const_value = weights
    model.graph.register_initializer(value)
    sizes = []
    whole = convert.convert

    def noted(proto: onnx.ModelProto, target: int) -> onnx.ModelProto:
        sizes.append(len(proto.SerializeToString()))
        return whole(proto, target)

    monkeypatch.setattr(convert, "convert", noted)
    run_pipeline(model, "convert-opset{target=13}")
    assert sizes and max(sizes) < 1000
    assert model.graph.initializers["w"].const_value is weights


def test_opsets_beyond_the_newest_are_refused() -> None:
    with pytest.raises(UsageError, match="runs opsets up to"):
        graphopt.optimize(
            parse("g (float[B] x) => (float[B] y) { y = Relu (x) }"), target_opset=convert.NEWEST
        )
    with pytest.raises(UsageError, match="there is no opset 999"):
        ConvertOpset(999)
    with pytest.raises(UsageError, match="needs a target"):
        ConvertOpset()


@dataclass(frozen=True)
class Harm(Pass):
    """Changes results outside of rewrites, and is required."""

    name: ClassVar[str] = "harm"
    required: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        (node,) = model.graph
        cx.edit.set_attribute(node, "alpha", 2.0)


def test_wrong_conversion_is_an_error() -> None:
    model = parse("g (float[B] x) => (float[B] y) { y = Elu <alpha = 1.0> (x) }")
    with pytest.raises(VerificationFailed, match="after harm the model does not compute the same"):
        graphopt.optimize(model, pipeline=[Harm()])
