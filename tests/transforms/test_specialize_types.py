"""specialize-types and remove-type-specializations."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.api import context_for, copy, optimize
from graphopt.profile.annotations import annotate
from graphopt.profile.value_profile import ValueProfile
from graphopt.transforms.profile.remove_type_specializations import RemoveTypeSpecializations
from graphopt.transforms.profile.specialize_types import SpecializeTypes
from tests.model_testing import parse

_MODEL = """g (float[B,N] x, float[C,M] y, int64 rate, float[?] z) => (float[B,N] out, int64 doubled) {
    s = Shape(x)
    r = Reshape(y, s)
    out = Add(x, r)
    doubled = Add(rate, rate)
}"""


def _specialized(**seen: ValueProfile) -> ir.Model:
    model = parse(_MODEL)
    annotate(model, seen)
    SpecializeTypes().run(model, context_for(model))
    return model


def _dims(model: ir.Model) -> list[list[str]]:
    return [[str(dim) for dim in value.shape or ()] for value in model.graph.inputs]


def _float(*dims: int | str) -> ValueProfile:
    return ValueProfile("tensor(float)", dims)


def test_sizes_and_equal_dims_are_declared() -> None:
    model = _specialized(x=_float(2, "s0"), y=_float(2, "s0"), z=_float("s1"))
    assert _dims(model) == [["2", "N"], ["2", "N"], [], ["s1"]]
    cx = context_for(model)
    x, y, *_ = model.graph.inputs
    assert cx.facts.shape_equal(x, y)


def test_model_symbol_is_reused_for_one_group_of_dims() -> None:
    model = parse("g (float[B] x, float[B] y) => (float[B] out) { out = Identity(x) }")
    annotate(model, {"x": _float("s0"), "y": _float("s1")})
    SpecializeTypes().run(model, context_for(model))
    assert _dims(model) == [["B"], ["s1"]]


def test_new_symbols_avoid_existing_names() -> None:
    model = parse("g (float[B] x, float[B] y, float[s1] z) => (float[B] out) { out = Identity(x) }")
    annotate(model, {"x": _float("s0"), "y": _float("s1"), "z": _float("s2")})
    SpecializeTypes().run(model, context_for(model))
    assert _dims(model) == [["B"], ["s1_1"], ["s1"]]


def test_declared_size_stays_and_binds_its_symbol() -> None:
    model = parse("g (float[4, 0] x, float[A, B] y) => (float[A, B] out) { out = Identity(y) }")
    annotate(model, {"x": _float("s0", "s1"), "y": _float("s0", "s1")})
    SpecializeTypes().run(model, context_for(model))
    assert _dims(model) == [["4", "0"], ["4", "0"]]
    model = parse("g (float[4] x, float[5] y) => (float[4] out) { out = Identity(x) }")
    annotate(model, {"x": _float("s0"), "y": _float("s0")})
    SpecializeTypes().run(model, context_for(model))
    assert _dims(model) == [["4"], ["5"]]


def test_anonymous_dim_keeps_the_declaration() -> None:
    model = parse("g (float[A, 3] x, float[A, B] y) => (float[A, B] out) { out = Identity(y) }")
    annotate(model, {"x": _float("?", "?"), "y": _float("?", "s0")})
    SpecializeTypes().run(model, context_for(model))
    assert _dims(model) == [["A", "3"], ["A", "B"]]


def test_constant_contents_replace_all_uses() -> None:
    model = _specialized(rate=ValueProfile("tensor(int64)", (), (16000,)))
    assert not ir.is_read(model.graph.inputs[2])
    [constant] = [value for value in model.graph.initializers.values()]
    assert constant.const_value is not None
    assert constant.const_value.numpy() == np.int64(16000)


def test_declarations_are_restored() -> None:
    before = parse(_MODEL)
    model = _specialized(x=_float(2, 3), y=_float(6, 1), z=_float(4))
    assert _dims(model) != _dims(before)
    RemoveTypeSpecializations().run(model, context_for(model))
    assert _dims(model) == _dims(before)
    assert ir.fingerprint(model, names=True) == ir.fingerprint(copy(before), names=True)


def test_inputs_without_annotation_stay() -> None:
    assert _dims(_specialized()) == _dims(parse(_MODEL))


_WRONG = """g (float[B, N, 4] x, bool c) => (float[B, 20, 4] y, float[B, 20, 4] z)
<float[B, 20, 4] wrong, float[B, N, 4] right, float[B, 20, 4] inner> {
    wrong = Relu(x) right = Neg(x) y = Exp(wrong) z = If (c) <
        then_branch = t () => (float[B, 20, 4] p) { p = Abs(y) }, else_branch = e () => (float[B, 20, 4] q) { q = Sin(y) }
    >
}"""


def _declared(model: ir.Model) -> dict[str | None, str]:
    """The declared shapes of all computed values."""
    graphs = ir.with_bodies(model.graph)
    values = [value for graph in graphs for node in graph for value in node.outputs]
    return {value.name: str(value.shape) for value in values if value.shape is not None}


def test_declared_shapes_that_contradict_profiled_types_are_dropped() -> None:
    model = parse(_WRONG)
    annotate(model, {"x": _float(2, 17, 4)})
    SpecializeTypes().run(model, context_for(model))
    assert set(_declared(model)) == {"right", "y", "z"}
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert [str(dim) for dim in model.graph.outputs[0].shape or ()] == ["B", "20", "4"]
    (copy_,) = [node for node in model.graph if node.op_type == "Identity"]
    assert copy_.inputs[0] is not None and copy_.inputs[0].shape is None


def test_declared_sizes_of_dynamic_dims_are_dropped() -> None:
    model = parse(_WRONG)
    annotate(model, {"x": _float(1, "s0", 4)})
    SpecializeTypes().run(model, context_for(model))
    assert set(_declared(model)) == {"right", "y", "z"}


def test_declared_sizes_that_depend_on_contents_are_kept() -> None:
    model = parse(
        """g (float[B, N] x) => (float[R, K] y) <int64[2, 20] found> { found = NonZero(x) y = Cast <to = 1>(found) }"""
    )
    annotate(model, {"x": _float(1, "s0")})
    SpecializeTypes().run(model, context_for(model))
    assert set(_declared(model)) == {"found", "y"}


def test_declared_shapes_without_contradiction_are_kept() -> None:
    model = parse(_WRONG)
    annotate(model, {"x": _float("s0", 20, 4)})
    before = _declared(model)
    SpecializeTypes().run(model, context_for(model))
    assert _declared(model) == before and not any(node.op_type == "Identity" for node in model.graph)


def test_fixed_dims_drop_contradicted_shapes() -> None:
    model = parse("g (float[B, N, 4] x) => (float[B, N, 4] y) <float[B, 20, 4] a> { a = Relu(x) y = Neg(a) }")
    for size, shapes in ((17, {"y"}), (20, {"a", "y"})):
        found = optimize(model, dims={"N": size}, verify=False).model
        assert set(_declared(found)) == shapes


def test_ifs_that_constant_contents_decide_are_replaced() -> None:
    text = """g (float[N] x, int64 rate) => (float[N] y) <int64 two = {2}> { c = Equal(rate, two) y = If (c) <
        then_branch = t () => (float[N] p) { p = Abs(x) }, else_branch = e () => (float[N] q) { q = Sin(x) } > }"""
    for fold, op in ((True, ["Abs"]), (False, ["Equal", "If"])):
        model = parse(text)
        annotate(model, {"rate": ValueProfile("tensor(int64)", (), (2,))})
        SpecializeTypes(fold).run(model, context_for(model))
        assert [node.op_type for node in model.graph if node.op_type in ("Abs", "Equal", "If")] == op
