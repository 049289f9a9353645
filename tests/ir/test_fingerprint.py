"""Fingerprints: independent of names and order, and different for any other change."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt import ir
from tests.ir.models import chain, floats, model, weight
from tests.model_testing import parse

BASE = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[N,4] x, bool c) => (float[N,4] y, float[N,4] z) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
    a = Mul(x, w)
    b = LeakyRelu<alpha = 0.5>(a)
    d = If (c) <
        then_branch = t () => (float[N,4] t1) { t0 = Neg(a)  t1 = Sub(b, t0) },
        else_branch = e () => (float[N,4] e1) { e1 = Abs(b) }
    >
    y = local.F<beta = 1.0>(d)
    z = Add(a, b)
}
<domain: "local", opset_import: ["" : 17]>
F <beta> (p) => (q) { q = LeakyRelu<alpha: float = @beta>(p) }
"""


def _fingerprint(text: str) -> str:
    return ir.fingerprint(parse(text))


def test_names_and_order_do_not_matter() -> None:
    renamed = BASE
    for old, new in ((" a =", " first ="), ("(a)", "(first)"), ("(a, b)", "(first, b)"), ("t0", "inner")):
        renamed = renamed.replace(old, new)
    renamed = renamed.replace("local.F", "local.G").replace("\nF <", "\nG <")
    assert _fingerprint(renamed) == _fingerprint(BASE)

    moved = parse(BASE)
    node = list(moved.graph)[-1]
    ir.Editor(moved).move_after(list(moved.graph)[1], [node])
    assert ir.fingerprint(moved) == _fingerprint(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha = 0.5", "alpha = 0.25"),
        ("alpha = 0.5", "alpha = -0.0"),
        ("beta = 1.0", "beta = 1"),
        ("4.0}", "5.0}"),
        ("Neg(a)", "Abs(a)"),
        ("Sub(b, t0)", "Sub(t0, b)"),
        ("Abs(b)", "Abs(a)"),
        ("= @beta", "= 0.5"),
        ("z = Add(a, b)", "z = Add(a, d)"),
        ('["" : 17, "local"', '["" : 16, "local"'),
        ('opset_import: ["" : 17]>\nF', 'opset_import: ["" : 16]>\nF'),
        ("float[N,4] x", "float[M,4] x"),
        ("float[N,4] x", "double[N,4] x"),
        ("bool c)", "bool c, float unused)"),
        ("y, float[N,4] z)", "y, float[N,4] z, float[N,4] a)"),
        ("z = Add(a, b)", "z = Add(a, b) dead = Neg(z)"),
        ("{ q =", "{ dead = Neg(p) q ="),
    ],
)
def test_fingerprint_depends_on_all_other_fields(old: str, new: str) -> None:
    assert old in BASE
    assert _fingerprint(BASE.replace(old, new)) != _fingerprint(BASE)


def test_fingerprint_distinguishes_signed_zeros() -> None:
    one, other = (BASE.replace("alpha = 0.5", f"alpha = {zero}") for zero in ("0.0", "-0.0"))
    assert _fingerprint(one) != _fingerprint(other)


def test_computing_twice_is_not_reading_twice() -> None:
    once = "g (float[N] x) => (float[N] y) { a = Neg(x) y = Add(a, a) }"
    twice = "g (float[N] x) => (float[N] y) { a = Neg(x) b = Neg(x) y = Add(a, b) }"
    assert _fingerprint(once) != _fingerprint(twice)


def test_outputs_and_captures_have_an_order() -> None:
    text = "g (float[N] x, bool c) => (float[N] y, float[N] z) {{ a = Neg(x) b = Abs(x) {} }}"
    assert _fingerprint(text.format("y = Exp(a) z = Exp(b)")) != _fingerprint(
        text.format("y = Exp(b) z = Exp(a)")
    )
    branch = "g (float[N] x, bool c) => (float[N] y) {{ a = Neg(x) b = Abs(x) y = If (c) < {} > }}"
    one = "then_branch = t () => (t1) {{ t1 = Sub({}) }}, else_branch = e () => (e1) {{ e1 = Exp(a) }}"
    first = _fingerprint(branch.format(one.format("a, b")))
    assert first == _fingerprint(branch.format(one.format("a, b")).replace("t1", "renamed"))
    assert first != _fingerprint(branch.format(one.format("b, a")))


def test_an_overridable_default_is_not_a_constant() -> None:
    constant = "g (float[1] x) => (float[1] y) <float[1] w = {1.0}> { y = Add(x, w) }"
    default = "g (float[1] x, float[1] w) => (float[1] y) <float[1] w = {1.0}> { y = Add(x, w) }"
    bare = "g (float[1] x, float[1] w) => (float[1] y) { y = Add(x, w) }"
    assert len({_fingerprint(text) for text in (constant, default, bare)}) == 3


def test_fingerprint_includes_interface_names_on_request() -> None:
    one = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    other = parse("g (float[N] x) => (float[N] other) { other = Neg(x) }")
    assert ir.fingerprint(one) == ir.fingerprint(other)
    assert ir.fingerprint(one, names=True) != ir.fingerprint(other, names=True)


def test_fingerprint_does_not_depend_on_storage() -> None:
    array = np.arange(4, dtype=np.float32)
    raw, typed = (
        numpy_helper.from_array(array, "w"),
        helper.make_tensor("v", onnx.TensorProto.FLOAT, [4], array),
    )
    node = helper.make_node
    assert ir.fingerprint(ir.from_proto(model([node("Add", ["x", "w"], ["y"])], [raw]))) == ir.fingerprint(
        ir.from_proto(model([node("Add", ["x", "v"], ["y"])], [typed]))
    )


def test_clones_and_saved_models_keep_their_fingerprint() -> None:
    loaded = parse(BASE)
    print_ = ir.fingerprint(loaded, names=True)
    assert ir.fingerprint(ir.clone(loaded), names=True) == print_
    assert ir.fingerprint(ir.from_proto(ir.to_proto(loaded)), names=True) == print_
    function = next(iter(loaded.functions.values()))
    assert ir.fingerprint(function) == ir.fingerprint(ir.clone_function(function))
    assert ir.fingerprint(loaded.graph) == ir.fingerprint(ir.Cloner().graph(loaded.graph))


def test_shuffled_long_graphs() -> None:
    nodes, names = [], ["x"]
    draw = random.Random(0)
    for index in range(3000):
        nodes.append(helper.make_node("Add", [draw.choice(names[-50:]), names[-1]], [f"v{index}"]))
        names.append(f"v{index}")
    nodes.append(helper.make_node("MatMul", [names[-1], "w"], ["y"]))
    proto = model(nodes, [weight("w", 4, 4)], outputs=[floats("y", "N", 4)])
    first = ir.fingerprint(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())))
    draw.shuffle(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert ir.fingerprint(ir.from_proto(proto)) == first
    assert ir.fingerprint(ir.from_proto(chain(10_000))) != first
