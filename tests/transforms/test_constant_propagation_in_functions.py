"""Below opset 9, functions can't contain integer constants: Constant produced only floating-point numbers."""

from __future__ import annotations

import onnx
import pytest

from graphopt import ir
from graphopt.errors import UnsupportedModel
from tests.model_testing import agree, parse, run_pipeline


def model(body: str, opset: int = 8) -> ir.Model:
    """A call of a function of ``a``, ``b`` (which is ``[-1, 2]``) and ``c`` (a flag)."""
    return parse(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "f" : 1]>
        g (float[2,N] x, bool f) => (float[p,q] y) <int64[2] s = {{-1, 2}}> {{ y = f.F (x, s, f) }}
        <domain: "f", opset_import: ["" : {opset}]>
        F (a, b, c) => (y) {{ {body} }}"""
    )


def after(passes: str, body: str, opset: int = 8) -> list[str]:
    """The operators of the function after ``passes``; the model still computes the same."""
    before, changed = model(body, opset), model(body, opset)
    run_pipeline(changed, passes)
    assert agree(before, changed)
    (function,) = changed.functions.values()
    return [node.op_type for node in ir.walk_nodes(function.graph)]


FOLDABLE = "k = Constant <value = float[2] {1, -2}> () n = Neg (k) v = Cast <to = 7> (n) y = Reshape (a, v)"
IF = """{0} = If ({1}) <
    then_branch = t{0} () => (float[r,s] p{0}) <int64[2] k = {{-1, 2}}> {{ p{0} = Reshape (a, k) }},
    else_branch = e{0} () => (float[r,s] q{0}) <int64[2] k = {{-1, 2}}> {{ u = Neg (a) q{0} = Reshape (u, k) }}
>"""
TRIPS = "t = Constant <value = float {3}> () n = Cast <to = 7> (t) w = Cast <to = 9> (t) "
LOOP = (
    TRIPS
    + """y = Loop (n, w, a) <body = l (int64 i, bool r, float[d,e] v) => (bool r, float[d,e] o)
        <int64[2] k = {-1, 2}> { u = Reshape (a, k) m = Shape (v) z = Reshape (u, m) o = Add (v, z) }>"""
)


@pytest.mark.parametrize("opset", [7, 8])
def test_rules_do_not_turn_inputs_into_constants(opset: int) -> None:
    assert after("peephole", "y = Reshape (a, b)", opset) == ["Reshape"]


def test_from_opset_9_on_rules_do() -> None:
    assert after("peephole", "y = Reshape (a, b)", 9) == ["Constant", "Reshape"]


def test_folding_ends_at_types_without_constants() -> None:
    assert after("constant-propagation,dce", FOLDABLE) == ["Constant", "Cast", "Reshape"]
    assert after("constant-propagation,dce", FOLDABLE, 9) == ["Constant", "Reshape"]


def test_if_with_integer_constants_in_a_branch_stays() -> None:
    folded = TRIPS + IF.format("y", "w")
    assert "If" in after("fold-if", folded)
    assert "If" not in after("fold-if", folded, 9)


def test_ifs_with_integer_constants_in_branches_are_not_merged() -> None:
    two = IF.format("o", "c") + IF.format("z", "c") + "y = Add (o, z)"
    assert after("merge-ifs", two).count("If") == 2
    assert after("merge-ifs", two, 9).count("If") == 1


@pytest.mark.parametrize("passes", ["unroll-loops", "hoist-loop-invariants"])
def test_constants_stay_in_loops(passes: str) -> None:
    assert after(passes, LOOP) == after("", LOOP)
    assert after(passes, LOOP, 9) != after("", LOOP, 9)


def test_conversion_to_an_opset_without_integer_constants_is_refused() -> None:
    holds = model("v = Constant <value = int64[2] {-1, 2}> () y = Reshape (a, v)", 9)
    with pytest.raises(UnsupportedModel, match="Constant gives no tensor"):
        run_pipeline(holds, "convert-opset{target=8}")


def test_editor_refuses_integer_constants_only_in_old_functions() -> None:
    held = model("y = Reshape (a, b)")
    _, cx = run_pipeline(held, "")
    (function,) = held.functions.values()
    assert cx.edit.supports_constant(held.graph, ir.DataType.INT64)
    assert cx.edit.supports_constant(function.graph, ir.DataType.DOUBLE)
    assert cx.edit.supports_constant(function.graph, ir.DataType.INT64, version=9)
    with pytest.raises(ir.ConstantRefused, match="no Constant of type int64"):
        cx.edit.constant(function.graph, ir.tensor([1]), "one")


def test_declarations_of_functions_do_not_enter_the_main_graph() -> None:
    changed = model("y = Reshape (a, b)", 9)
    run_pipeline(changed, "peephole")
    assert not onnx.ModelProto.FromString(ir.to_bytes(changed)).graph.value_info
    told = onnx.helper.make_tensor_value_info("f::F/y", onnx.TensorProto.FLOAT, [None, 2])
    proto = ir.to_proto(model("y = Reshape (a, b)"))
    proto.graph.value_info.append(told)
    assert list(ir.to_proto(ir.from_proto(proto)).graph.value_info) == [told]
