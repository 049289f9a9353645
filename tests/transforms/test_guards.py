"""insert-guards, eliminate-guards and remove-profile-nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Observer, Refusal
from graphopt.ops import graphopt_operators
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate, assertion_of, is_annotation
from tests.model_testing import agree, ops, parse, run_pipeline

TWO = """g (float[N,M] x, float[K,M] y) => (float[A,B] out, float[A,B] a) {
    a = Add(x, y)
    s = Shape(a)
    z = Neg(a)
    out = Reshape(z, s)
}"""


class _Recorder(Observer):
    """Records refusals and remarks."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.remarks: list[str] = []

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def said(self, owner: str, message: Any) -> None:
        self.remarks.append(message())


def _float(*dims: int | str) -> ValueProfile:
    return ValueProfile("tensor(float)", dims)


def _ints(*ints: int, shape: tuple[int, ...]) -> ValueProfile:
    return ValueProfile("tensor(int64)", shape, ints)


def _guarded(text: str, pipeline: str = "insert-guards", /, **seen: ValueProfile) -> ir.Model:
    model = parse(text)
    annotate(model, seen)
    run_pipeline(model, pipeline)
    ir.validate(model)
    return model


def _observe(text: str, **seen: ValueProfile) -> _Recorder:
    model, recorder = parse(text), _Recorder()
    annotate(model, seen)
    run_pipeline(model, "insert-guards", observers=(recorder,))
    return recorder


def _assertions(model: ir.Model) -> dict[str, str]:
    found = {}
    for node in graphopt_operators.guards_of(model):
        value = node.inputs[0]
        assert value is not None and value.name is not None
        found[value.name] = str(assertion_of(node))
    return found


def _value(model: ir.Model, name: str) -> ir.Value:
    [value] = [v for graph in ir.graphs_of(model) for v in ir.values_of(graph) if v.name == name]
    return value


def _is_annotated(model: ir.Model) -> bool:
    values = [value for graph in ir.graphs_of(model) for value in ir.values_of(graph)]
    return any(is_annotation(key) for value in values for key in value.metadata_props)


def test_uses_read_the_guard_and_graph_outputs_do_not() -> None:
    model = _guarded(TWO, x=_float("s0", 4), a=_float("s0", 4))
    assert _assertions(model) == {"x": "f32[s0, 4]", "a": "f32[s0, 4]"}
    a = model.graph.outputs[1]
    assert [value.name for value in model.graph.outputs] == ["out", "a"]
    assert a.producer() is not None and ops(model)[1] == "Add"
    assert [reader.op_type for reader in ir.readers(a)] == ["Guard"]
    assert model.graph.opset_imports["graphopt.profile"] == 1
    assert not _is_annotated(model)
    before = ir.fingerprint(model, names=True)
    run_pipeline(model, "insert-guards")
    assert ir.fingerprint(model, names=True) == before


def test_shared_symbols_make_dims_equal_behind_guards() -> None:
    model = _guarded(TWO, x=_float("s0", 4), y=_float("s0", 4))
    cx = context_for(model)
    x, y, a = (_value(model, name) for name in ("x", "y", "a"))
    assert not cx.facts.shape_equal(x, y)
    assert all(cx.facts.shape_equal(_behind(value), a) for value in (x, y))
    run_pipeline(model, "O2")
    assert ops(model) == ["Guard", "Guard", "Add", "Neg"]


def test_guard_symbols_are_distinct_from_model_dims() -> None:
    text = "g (float[s0] x, float[N] y, float[M] z) => (float[K] out) { a = Add(x, y) out = Add(a, z) }"
    model = _guarded(text, y=_float("s0"), z=_float("s0"))
    assert _assertions(model) == {"y": "f32[s0_1]", "z": "f32[s0_1]"}
    # even if spelt alike
    other = parse(
        f"""g (float[s0] x, float[N] y, float[N] z) => (float[K] out) {{
            g = graphopt.profile.Guard <seen = {json.dumps(json.dumps(_float("s0").to_dict()))}> (y)
            a = Add(x, g)
            out = Add(a, z)
        }}""",
        domains=', "graphopt.profile" : 1',
    )
    cx = context_for(other)
    assert not cx.facts.shape_equal(_value(other, "x"), _value(other, "g"))
    annotate(other, {"x": _float("s0"), "z": _float("s0")})
    run_pipeline(other, "insert-guards")
    assert {str(seen) for seen in _assertions(other).values()} == {
        "f32[s0]",
        "f32[s0_1]",
    }


def test_symbols_without_information_are_dropped() -> None:
    text = "g (float[N,M] x, float[N,4] y) => (float[N,M] out) { a = Relu(x) b = Relu(y) out = Add(a, b) }"
    # a symbol that occurs once, and one whose dims are known to be equal
    recorder = _observe(text, x=_float("s0", "s1"), y=_float("s0", 4), a=_float("?", "?"))
    assert recorder.remarks == [
        f"{name}: no guard, because the facts imply its annotation" for name in ("x", "y", "a")
    ]
    assert _assertions(_guarded(text, x=_float("s0", 4), y=_float("s0", 4))) == {"x": "f32[?, 4]"}
    # a symbol with a known size at one dim has that size at all
    assert _assertions(_guarded(text, x=_float("s0", "s1"), y=_float("s0", "s1"))) == {"x": "f32[?, 4]"}


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (_float(3, 5), "its dim 1 is 4, not 5"),
        (_float(3, 4, 1), "its rank is 2, not 3"),
        (ValueProfile("tensor(double)", (3, 4)), "its type is f32[N, 4], not f64[3, 4]"),
    ],
)
def test_contradicted_annotations_are_refused(seen: ValueProfile, reason: str) -> None:
    text = "g (float[N,4] x, float[3,4] y) => (float[3,4] out) { a = Add(x, y) out = Relu(a) }"
    [refusal] = _observe(text, x=seen).refusals
    assert (refusal.rule, refusal.node, refusal.reason, refusal.value) == ("insert-guards", "x", reason, "x")
    model = _guarded(text, x=seen)
    assert ops(model) == ["Add", "Relu"] and not _is_annotated(model)


def test_contradicted_contents_and_symbols_are_refused() -> None:
    text = """g (float[2,3] x, float[N,M] y) => (int64[K] out, float[2,3] z) <int64[2] two = {2, 3}> {
        s = Shape(x) c = Cast <to = 7> (two) out = Add(s, c) r = Relu(x) z = Add(r, y) }"""
    reasons = [
        refusal.reason
        for refusal in _observe(text, s=_ints(2, 4, shape=(2,)), two=_ints(1, 1, shape=(2,))).refusals
    ]
    assert reasons == ["it holds 2, 3, not 1, 1", "it holds 2, 3, not 2, 4"]
    # equal symbols with different known sizes
    recorder = _observe(text, x=_float("d", "d"))
    assert [refusal.reason for refusal in recorder.refusals] == ["its dim 1 is 3, not 2"]


def test_guards_enable_folding_of_shapes_and_ifs() -> None:
    text = """g (float[N,M] x) => (float[N,M] y) <int64 axis = {1}, int64 four = {4}> {
        s = Shape(x)
        size = Gather(s, axis)
        small = Equal(size, four)
        y = If (small) <
            then_branch = a () => (float[N,M] p) { p = Neg(x) },
            else_branch = b () => (float[N,M] q) { q = Exp(x) }
        >
    }"""
    assert ops(_guarded(text, "insert-guards,O2", x=_float("s0", 4))) == ["Guard", "Neg"]
    assert ops(_guarded(text, "insert-guards,O2", x=_float("s0", 5))) == ["Guard", "Exp"]
    assert "If" in ops(_guarded(text, "insert-guards,O2", x=_float(4, "s0")))


def test_pinned_contents_become_a_constant_and_stay_guarded() -> None:
    text = """g (float[N,M] x, int64[2] to, bool c) => (float[A,B] y) {
        r = Reshape(x, to)
        y = If (c) <
            then_branch = a () => (float[A,B] p) { p = Neg(r) },
            else_branch = b () => (float[A,B] q) { q = Exp(r) }
        >
    }"""
    seen = {"to": _ints(2, 6, shape=(2,)), "c": ValueProfile("tensor(bool)", (), (1,))}
    model = _guarded(text, "insert-guards,O3", **seen)
    assert ops(model) == ["Guard", "Guard", "Reshape", "Neg"]
    assert context_for(model).static_shape(model.graph.outputs[0]) == (2, 6)


def test_guards_in_bodies() -> None:
    text = """g (float[N,4] x, int64 n, bool c) => (float[N,4] y, float[N,4] z) {
        y = Loop (n, , x) <body = b (int64 i, bool k, float[A,B] v) => (bool k2, float[A,B] w, float[A,B] row) {
            k2 = Identity(k)
            u = Unique <axis = 0> (v)
            s = Shape(u)
            e = Relu(u)
            w = Reshape(e, s)
            row = Neg(w)
        }>
        z = If (c) <
            then_branch = t () => (float[N,4] p) { q = Relu(x) m = Exp(q) p = Neg(m) },
            else_branch = f () => (float[N,4] o) { o = Identity(x) }
        >
    }""".replace("y = Loop", "y, rows = Loop")
    model = _guarded(text, u=_float(7, 4), q=_float(7, "s0"), v=_float("s1", 4))
    assert _assertions(model) == {"u": "f32[7, 4]", "q": "f32[7, 4]"}
    [loop, branch] = model.graph
    assert [node.op_type for node in loop.attributes["body"].as_graph()][1:3] == ["Unique", "Guard"]
    assert [node.op_type for node in branch.attributes["then_branch"].as_graph()] == [
        "Relu", "Guard", "Exp", "Neg",
    ]  # fmt: skip
    run_pipeline(model, "O2")
    [body] = [node.attributes["body"].as_graph() for node in model.graph if node.op_type == "Loop"]
    assert "Shape" not in [node.op_type for node in body] and len(_assertions(model)) == 2


def test_guards_in_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x, float[N] z) => (float[N] y) { a = own.F(x) b = own.F(z) y = Add(a, b) }
    <domain: "own", opset_import: ["" : 17]>
    F (p) => (r) { n = NonZero(p) s = Shape(n) m = ConstantOfShape(s) r = Add(p, m) }"""
    model = _guarded(text, p=_float(4), n=ValueProfile("tensor(int64)", (1, 2)))
    [function] = model.functions.values()
    assert [node.op_type for node in function][:3] == ["Guard", "NonZero", "Guard"]
    assert function.opset_imports["graphopt.profile"] == 1
    run_pipeline(model, "constant-propagation,dce")
    assert "Shape" not in [node.op_type for node in function]
    assert len(_assertions(model)) == 2


def test_unused_guards_stay() -> None:
    """Rewrites may rely on unused guards, so calls, loops and Ifs that contain guards stay."""
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x, int64 n, bool c) => (int64[1] y, float[N] z) {
        a = own.F(x)
        b = Loop (n, , x) <body = h (int64 i, bool k, float[B] v) => (bool k2, float[B] w) {
            k2 = Identity(k) e = Exp(v) w = Neg(e)
        }>
        d = If (c) <
            then_branch = t () => (float[N] p) { q = Relu(x) p = Neg(q) },
            else_branch = f () => (float[N] o) { o = Identity(x) }
        >
        y = Shape(b)
        z = Identity(x)
    }
    <domain: "own", opset_import: ["" : 17]>
    F (p) => (r) { m = Abs(p) r = Add(p, m) }"""
    dead = _guarded(text, "dce")
    assert ops(dead) == ["Loop", "Shape", "Identity"]
    model = _guarded(text, "insert-guards,dce,O2", e=_float(4), q=_float(4), m=_float(4))
    assert set(_assertions(model)) == {"e", "q", "m"}
    assert {"F", "Loop", "If"} <= set(ops(model))


def test_loop_keeps_the_inputs_of_its_guards() -> None:
    text = """g (float[4] x, float[N] x2, int64 n) => (float[4] y) {
        y, unread = Loop (n, , x, x2) <
            body = h (int64 i, bool k, float[4] v, float[B] v2) => (bool k2, float[4] w, float[B] w2) {
                k2 = Identity(k) w = Neg(v) e = Exp(v2) f = Relu(e) w2 = Neg(f)
        }>
    }"""
    assert "Exp" not in _body_ops(_guarded(text, "trim-loops,dce"))
    assert "Exp" in _body_ops(_guarded(text, "insert-guards,trim-loops,dce", e=_float(9)))


def _body_ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph[0].attributes["body"].as_graph()]


def test_unused_values_have_no_guard() -> None:
    text = "g (float[N] x, float[N] unused) => (float[N] y) { y = Relu(x) }"
    recorder = _observe(text, unused=_float(4), y=_float(4))
    assert recorder.remarks == [f"{name}: no guard, because it is unused" for name in ("unused", "y")]


def test_guards_keep_the_order_of_inputs_and_outputs() -> None:
    text = """g (float[N,6] x, float[N,6] y) => (float[N,6] z) {
        a, b = Split <axis = 0> (x)
        c = Concat <axis = 0> (a, b)
        z = Add(c, y)
    }"""
    seen = {name: _float(2, 6) for name in "xyab"}
    model = _guarded(text.replace("Split <axis = 0>", "Split <axis = 0>"), **seen)
    assert list(_assertions(model)) == ["x", "y", "a", "b"]


def test_implied_guards_are_eliminated() -> None:
    seen = {"x": _float("s0", 4), "y": _float("s0", 4), "a": _float("s0", 4), "z": _float("s0", 4)}
    model = _guarded(TWO, "insert-guards,eliminate-guards", **seen)
    assert list(_assertions(model)) == ["x", "y"]
    assert [value.name for value in model.graph.outputs] == ["out", "a"]
    # near misses: another symbol, another size, a result of unknown size
    text = "g (float[N] x, float[M] y) => (float[K] o) { a = Add(x, y) n = Compress(a, c) o = Relu(n) }"
    text = text.replace("float[M] y", "float[M] y, bool[L] c")
    model = _guarded(
        text, "insert-guards,eliminate-guards",
        x=_float("s0"), y=_float("s1"), a=_float("s0"), c=ValueProfile("tensor(bool)", ("s1",)), n=_float(3),
    )  # fmt: skip
    assert list(_assertions(model)) == ["x", "y", "c", "a", "n"]


def test_second_guard_of_a_value_reads_the_first() -> None:
    def one(name: str, seen: ValueProfile) -> str:
        return f"{name} = graphopt.profile.Guard <seen = {json.dumps(json.dumps(seen.to_dict()))}> (x)"

    text = f"""g (float[N,M] x) => (float[N,M] o) {{
        {one("a", _float("?", 4))} {one("b", _float("?", 4))} {one("c", _float(3, "?"))} {one("d", _float(3, 4))}
        e = Add(a, b) f = Add(c, d) o = Add(e, f) }}"""
    model = parse(text, domains=', "graphopt.profile" : 1')
    run_pipeline(model, "eliminate-guards")
    assert ops(model) == ["Guard", "Guard", "Add", "Add", "Add"]
    first, second, *_ = model.graph
    assert second.inputs[0] is first.outputs[0]
    assert {id(value) for value in model.graph[3].inputs} == {id(second.outputs[0])}


def test_guard_that_binds_a_symbol_to_a_known_size_stays() -> None:
    def one(name: str, of: str) -> str:
        seen = json.dumps(json.dumps(_float("s0").to_dict()))
        return f"{name} = graphopt.profile.Guard <seen = {seen}> ({of})"

    text = f"g (float[8] x, float[N] y) => (float[8] o) {{ {one('a', 'x')} {one('b', 'y')} o = Add(a, b) }}"
    model = parse(text, domains=', "graphopt.profile" : 1')
    run_pipeline(model, "eliminate-guards")
    assert ops(model) == ["Guard", "Guard", "Add"]


def test_remove_profile_nodes_restores_the_general_model() -> None:
    seen = {"x": _float("s0", 4), "y": _float("s0", 4), "a": _float("s0", 4)}
    model = _guarded(TWO, "insert-guards", **seen)
    annotate(model, {"z": _float("s0", 4)})
    _, cx = run_pipeline(model, "remove-profile-nodes")
    assert not _assertions(model) and not _is_annotated(model)
    assert cx.facts.rank(_value(model, "z")) == 2
    assert not cx.facts.shape_equal(_value(model, "x"), _value(model, "y"))
    run_pipeline(model, "dce")
    assert ir.fingerprint(model) == ir.fingerprint(parse(TWO))
    assert agree(parse(TWO), model)


def test_guard_output_that_is_a_graph_output() -> None:
    seen = json.dumps(json.dumps(_float("s0", 4).to_dict()))
    text = (
        f"g (float[N,M] x) => (float[N,4] y) {{ a = Relu(x) y = graphopt.profile.Guard <seen = {seen}> (a) }}"
    )
    model = parse(text, domains=', "graphopt.profile" : 1')
    run_pipeline(model, "remove-profile-nodes")
    assert ops(model) == ["Relu", "Identity"] and model.graph.outputs[0].name == "y"


def test_malformed_assertion_provides_no_facts() -> None:
    for broken in ('"{"', '"{}"', "3"):
        text = f"g (float[N] x) => (float[N] y) {{ y = graphopt.profile.Guard <seen = {broken}> (x) }}"
        model = parse(text, domains=', "graphopt.profile" : 1')
        run_pipeline(model, "eliminate-guards,O2")
        assert ops(model) == ["Guard"]
        cx = context_for(model)
        assert cx.facts.shape_equal(model.graph.inputs[0], model.graph.outputs[0])


def test_each_guard_insertion_can_be_refused() -> None:
    model = parse(TWO)
    annotate(model, {"x": _float(3, 4), "y": _float(3, 4)})
    run_pipeline(model, "insert-guards", gate=lambda action: action.node == "x_guard")
    assert list(_assertions(model)) == ["x"]


def _behind(value: ir.Value) -> ir.Value:
    [node] = ir.readers(value)
    return node.outputs[0]


@pytest.mark.parametrize("size", [4, 7, 1])
def test_rewrites_that_rely_on_guards_are_correct_where_guards_hold(size: int) -> None:
    text = """g (float[N,M] x, float[K,L] y) => (float[A,B] out, int64[1] n) <float[1] w = {3.0}, int64 axis = {0}> {
        a = Add(x, y)
        s = Shape(x)
        e = Expand(w, s)
        b = Mul(a, e)
        d = Reshape(b, s)
        m = NonZero(d)
        t = Transpose(m)
        p = Shape(t)
        n = Gather<axis = 0>(p, k)
        out = Relu(d)
    }""".replace("int64 axis = {0}", "int64[1] k = {1}")
    seen = {name: _float("s0", size) for name in ("x", "y", "a", "b", "d")}
    model = _guarded(text, "insert-guards,eliminate-guards,O3", **seen)
    assert list(_assertions(model)) == ["x", "y"] and "Reshape" not in ops(model)
    run_pipeline(model, "remove-profile-nodes")
    assert agree(parse(text), model, sizes=(size,))


def test_facts_at_one_guard_do_not_bind_its_symbol_elsewhere() -> None:
    model = _guarded(TWO, x=_float("s0", 4), y=_float("s0", 4))
    facts = context_for(model).facts
    x, y = (_value(model, name) for name in ("x", "y"))
    assert facts.shape_equal(_behind(x), _behind(y))
    facts.replaced(_behind(x), x)  # as a rewrite in a branch might do
    assert not facts.shape_equal(_behind(y), x) and not facts.shape_equal(_behind(y), y)


def test_guard_that_never_holds_stays() -> None:
    seen = json.dumps(json.dumps(_float(5).to_dict()))
    text = f"g (float[4] x) => (float[4] y) {{ a = graphopt.profile.Guard <seen = {seen}> (x) y = Relu(a) }}"
    model = parse(text, domains=', "graphopt.profile" : 1')
    run_pipeline(model, "eliminate-guards,O2")
    assert ops(model) == ["Guard", "Relu"]
    assert context_for(model).static_shape(model.graph.outputs[0]) == (4,)


def test_guards_move_with_inlined_functions_and_branches() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x, bool c) => (float[N] y) <bool yes = {1}> {
        a = own.F(x)
        y = If (yes) <
            then_branch = t () => (float[N] p) { q = Abs(a) p = Neg(q) },
            else_branch = f () => (float[N] o) { o = Identity(x) }
        >
    }
    <domain: "own", opset_import: ["" : 17]>
    F (v) => (r) { e = Exp(v) r = Neg(e) }"""
    model = _guarded(text, "insert-guards,inline-functions,O2", e=_float(4), q=_float(4))
    assert ops(model) == ["Exp", "Guard", "Abs", "Guard", "Neg"]
    assert model.graph.opset_imports["graphopt.profile"] == 1
    run_pipeline(model, "eliminate-guards")
    assert ops(model) == ["Exp", "Guard", "Abs", "Neg"]
