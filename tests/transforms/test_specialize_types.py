"""specialize-types and remove-type-specializations."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.api import context_for, copy
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
