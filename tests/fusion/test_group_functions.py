"""Groups read from models of unknown origin, and lowering of groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.errors import InvalidModel
from graphopt.fusion import group_functions
from graphopt.fusion.group_functions import digest, groups_of, kernel_of, kernels_of, name_of, signatures_of
from graphopt.fusion.group_signature import Signature, Tensor
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.lower_group import lower
from graphopt.ops import graphopt_operators
from graphopt.passes.pipelines import make_pipeline
from tests.fusion.models import TWO
from tests.model_testing import parse
from tests.transforms.test_fuse_groups import GROUPS, fused


def written(change: Callable[[onnx.ModelProto], None]) -> ir.Model:
    """A model with a group, changed by hand."""
    model, _ = fused(GROUPS["pointwise"])
    proto = ir.to_proto(model)
    change(proto)
    return ir.from_proto(proto)


def test_unexpected_function_name_has_no_kernel() -> None:
    _, (group,) = fused(GROUPS["pointwise"])
    assert group.signature is not None
    evil = f'/*"}}; int evil; /*"*/k_{digest(group.function, group.signature)}'

    def rename(proto: onnx.ModelProto) -> None:
        (function,), (node,) = proto.functions, proto.graph.node
        signatures = json.loads(proto.metadata_props[0].value)
        proto.metadata_props[0].value = json.dumps({evil: signatures[function.name]})
        function.name = node.op_type = evil

    (found,) = groups_of(written(rename))
    assert found.kernel is None and found.reason == "its contents do not match its name"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "nonsense", "[]", '{"a": 1}', '{"a": {"inputs": ["f32[d0;]"]}}']
)
def test_malformed_signatures_are_reported(text: str) -> None:
    def damage(proto: onnx.ModelProto) -> None:
        proto.metadata_props[0].value = text

    with pytest.raises(InvalidModel):
        signatures_of(written(damage))


def test_missing_signature_has_no_kernel() -> None:
    (found,) = groups_of(written(lambda proto: proto.ClearField("metadata_props")))
    assert found.kernel is None and "types" in found.reason


@pytest.mark.parametrize(
    "node",
    [
        "Softmax <axis = -7> (a)",
        "Abs(a, x)",
        "And(a, x)",
        "Where(a, a, x)",
        "ReduceSum <axes = [0, 0]> (a)",
        'LeakyRelu <alpha = "s"> (a)',
    ],
)
def test_invalid_nodes_have_no_kernel(node: str) -> None:
    model = parse(f"g (float[N] x) => (float[N] y) {{ a = Abs(x) y = {node} }}")
    proto = ir.to_proto(model)
    body = proto.graph
    function = onnx.helper.make_function(
        graphopt_operators.NATIVE_DOMAIN,
        "f",
        ["x"],
        ["y"],
        list(body.node),
        [onnx.helper.make_opsetid("", 17)],
    )
    signature = Signature((Tensor.parse("f32[d0]"),), (Tensor.parse("f32[d0]"),))
    found = ir.from_proto(_calling(proto, function)).functions[graphopt_operators.NATIVE_DOMAIN, "f", ""]
    name = function.name = name_of(found, signature)
    made = _calling(proto, function)
    made.metadata_props.add(
        key=graphopt_operators.KERNEL_SIGNATURES, value=json.dumps({name: signature.to_dict()})
    )
    (group,) = groups_of(ir.from_proto(made))
    assert group.kernel is None and group.reason != "its contents do not match its name"


def _calling(proto: onnx.ModelProto, function: onnx.FunctionProto) -> onnx.ModelProto:
    """A model that only calls ``function``."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.node[:]
    made.graph.node.append(
        onnx.helper.make_node(function.name, ["x"], ["y"], domain=graphopt_operators.NATIVE_DOMAIN)
    )
    made.functions.append(function)
    made.opset_import.add(domain=graphopt_operators.NATIVE_DOMAIN, version=1)
    return made


@pytest.mark.parametrize("text", ["f32[d0,64]", "i64[2]={d0,-1}", "u8[]", "bool[3*d0*d1]", "f16[0]"])
def test_signatures_round_trip(text: str) -> None:
    assert str(Tensor.parse(text)) == text


def test_groups_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lowering per group in a run: the proposal's, which verification and the library reuse."""
    lowered: list[str] = []

    def counting(graph: ir.Graph, cx: Context, name: str) -> Kernel:
        lowered.append(name)
        return lower(graph, cx, name)

    monkeypatch.setattr(group_functions, "lower", counting)
    model, report = graphopt.optimize(parse(TWO), fuser="native")
    kernels = kernels_of(model)
    assert len(kernels) == 2 and len(report.kernels) in (0, 2)  # none without a compiler
    assert len(lowered) == 2
    loaded = ir.from_proto(ir.to_proto(model))
    assert kernels_of(loaded) == kernels and len(lowered) == 4  # a file contains no kernels
    assert kernels_of(loaded) == kernels and len(lowered) == 4


@pytest.mark.parametrize("text", GROUPS.values(), ids=GROUPS)
def test_proposed_kernel_is_that_of_the_function(text: str) -> None:
    model, (group,) = fused(text)
    (loaded,) = groups_of(ir.from_proto(ir.to_proto(model)))
    assert group.kernel is not None and loaded.kernel == group.kernel


def test_changed_function_is_lowered_again() -> None:
    _, (group,) = fused(GROUPS["pointwise"])
    function, signature = group.function, group.signature
    assert signature is not None
    before = kernel_of(function, signature)
    function.name = "renamed"
    assert kernel_of(function, signature) == replace(before, name="renamed")


def test_a_constant_is_an_operand_of_one_group_and_a_parameter_of_another() -> None:
    model = parse(
        """g (int8[4,48] x, int8[48,17] w, int8[1,2,5,5] i, int8[3,2,3,3] f) => (int8[4,17] y, int8[1,3,3,3] z)
        <float s = {0.02}, int8 o = {3}> {
            a = DequantizeLinear(x, s, o)
            b = DequantizeLinear(w, s, o)
            p = MatMul(a, b)
            y = QuantizeLinear(p, s, o)
            z = QLinearConv(i, s, o, f, s, o, s, o)
        }"""
    )
    with context_for(model) as cx:
        make_pipeline("fuse-groups{kernels=all}").run(model, cx)
    assert [group.reason for group in groups_of(model)] == ["", ""]
