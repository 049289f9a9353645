"""Groups are outlined as functions and inlined again, and results are preserved."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from graphopt import ir
from graphopt.context import context_for
from graphopt.ops import graphopt_operators
from graphopt.ops.graphopt_operators import requires_grad_annotation
from tests.model_testing import agree, ops, parse, run_pipeline

CREATE, INLINE = "create-autodiff-subgraphs", "inline-autodiff-subgraphs"


def created(model: ir.Model | str, options: str = "") -> ir.Model:
    """The model with groups, checked to be equivalent."""
    original = parse(model) if isinstance(model, str) else model
    changed = original.clone()
    run_pipeline(changed, CREATE + options)
    ir.validate(changed)
    assert agree(original, changed)
    return changed


def groups(model: ir.Model) -> list[list[str]]:
    """Operators of the groups, without constants."""
    assert all(key[0] == graphopt_operators.AUTODIFF_GROUPS for key in model.functions)
    return [
        [node.op_type for node in function.graph if node.op_type != "Constant"]
        for function in model.functions.values()
    ]


def call(model: ir.Model) -> ir.Node:
    (found,) = [
        node for node in ir.walk_nodes(model.graph) if node.domain == graphopt_operators.AUTODIFF_GROUPS
    ]
    return found


def test_a_group_is_a_function_with_one_call() -> None:
    model = created(
        "g (float[N,4] x) => (float[N,4] y, float[N,4] b) { a = Exp(x) b = Neg(a) y = Mul(a, b) }"
    )
    assert ops(model) == ["group_0"] and groups(model) == [["Exp", "Neg", "Mul"]]
    assert [value.name for value in model.graph.outputs] == ["y", "b"]
    assert [requires_grad_annotation(value) for value in call(model).outputs] == [True, True]
    (function,) = model.functions.values()
    assert [requires_grad_annotation(value) for value in function.inputs] == [True]


def test_outputs_are_annotated_with_requires_grad() -> None:
    model = created(
        "g (float[N,4] x) => (float[N,4] y, int64[2] n) { a = Exp(x) s = Shape(a) b = Reshape(a, s) n = Add(s, s) y = Sin(b) }"
    )
    assert dict(
        zip(
            (v.name for v in call(model).outputs),
            map(requires_grad_annotation, call(model).outputs),
            strict=True,
        )
    ) == {
        "s": False,
        "y": True,
    }


def test_random_nodes_keep_their_order() -> None:
    """The first random node needs the group, which has a node behind the second one."""
    text = """g (float[4] x) => (float[4] y) {
        a = Exp(x)
        [first] p = RandomNormalLike(a)
        [second] q = RandomNormalLike(x)
        b = Neg(a)
        c = Mul(p, q)
        y = Add(b, c)
    }"""
    model = parse(text)
    run_pipeline(model, f"{CREATE}{{minimum=1}}")
    ir.validate(model)
    assert [node.name or "c" for node in model.graph] == ["group_0", "first", "second", "c", "group_1"]


def test_values_between_groups() -> None:
    model = parse(
        "g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) r = RandomNormalLike(b) c = Mul(r, b) y = Sin(c) }"
    )
    run_pipeline(model, CREATE)
    facts = [
        [requires_grad_annotation(value) for value in function.inputs]
        for function in model.functions.values()
    ]
    assert facts == [[True], [False, True]]


def test_redundant_nodes_outside_of_groups_are_merged() -> None:
    text = "g (float[4] x) => (float[4] y) { s = Shape(x) t = Shape(x) a = Reshape(x, s) b = Exp(a) y = Reshape(b, t) }"
    assert ops(created(text)) == ["Shape", "group_0"]


def test_no_grad_scopes_do_not_affect_other_readers() -> None:
    """An output that is read in such a scope alone has a gradient in its own."""
    model = parse("g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) c = Sin(b) y = Cos(c) }")
    for node, scope in zip(model.graph, ("loud", "loud", "quiet", "quiet"), strict=True):
        node.name = f"{scope}/{node.op_type}"
    changed = created(model, "{no-grad=quiet}")
    assert ops(changed) == ["group_0", "Sin", "Cos"]
    assert [requires_grad_annotation(value) for value in call(changed).outputs] == [True]
    assert all(
        requires_grad_annotation(output) is None
        for node in list(changed.graph)[1:]
        for output in node.outputs
    )


def test_copied_inputs_are_read_from_outside() -> None:
    """The Identities produce graph outputs, and have their names."""
    model = created(
        """g (float[N,4] x) => (float[N,4] y, float[N,4] same, float[N,4] z, float[N,4] again) {
            i = Identity(x)
            same = Identity(i)
            a = Exp(i)
            y = Neg(a)
            again = Identity(y)
            j = Identity(y)
            z = Sin(j)
        }"""
    )
    (function,) = model.functions.values()
    assert groups(model) == [["Exp", "Neg", "Sin"]]
    assert len(function.outputs) == len({*function.outputs}) == 2
    assert not {*function.outputs} & {*function.inputs}
    assert sorted(ops(model)) == ["Identity", "Identity", "Identity", "group_0"]  # i, same and again


def test_repeated_computations_have_one_output() -> None:
    """An obstacle reads both of the values that are equal, so that both would come out."""
    model = created(
        """g (float[N,4] x) => (float[N,4] y) <int64 first = {0}> {
            a = Exp(x)
            b = Exp(x)
            c = Neg(a)
            d = Neg(b)
            s = SequenceConstruct(c, d)
            e = SequenceAt(s, first)
            f = Sub(c, d)
            y = Add(f, e)
        }"""
    )
    assert groups(model) == [["Exp", "Neg", "Sub"]]
    assert [len(function.outputs) for function in model.functions.values()] == [2]


def test_equal_outputs_keep_their_names() -> None:
    model = created(
        "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Exp(x) z = Exp(x) }", "{minimum=1}"
    )
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_constants_are_copied_or_captured() -> None:
    model = created(
        """g (float[N,4] x) => (float[N,2] y)
            <float two = {2}, float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] n = {-1}> {
            a = Mul(x, two)
            b = MatMul(a, w)
            c = Softmax<axis = -1>(b)
            y = Add(c, two)
        }"""
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function.graph].count("Constant") == 1
    assert [value.name for value in call(model).inputs] == ["x", "w"]
    assert list(model.graph.initializers) == ["w", "n"]


def test_bodies_of_ungrouped_nodes_have_groups() -> None:
    model = created(
        """g (float[4] x, bool c) => (float[4] y) {
            a = Exp(x)
            y = If(c) <
                then_branch = t () => (float[4] p) { o = Neg(a) r = Sin(o) s = SequenceConstruct(r)
                    z = Constant<value_int = 0>() p = SequenceAt(s, z) },
                else_branch = e () => (float[4] q) { q = Cos(a) }
            >
        }"""
    )
    assert groups(model) == [["Neg", "Sin"]] and ops(model) == ["Exp", "If"]


def test_small_groups_are_inlined() -> None:
    model = created(
        "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Exp(x) z = Sin(y) }", "{minimum=1}"
    )
    before = model.clone()
    run_pipeline(model, INLINE)
    assert groups(model) == [["Exp", "Sin"]]
    run_pipeline(model, f"{INLINE}{{minimum=3}}")
    assert ops(model) == ["Exp", "Sin"] and not model.functions and agree(before, model)


def test_models_without_functions_are_unchanged() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = Exp(x) y = Sin(a) }", ir_version=7)
    run_pipeline(model, CREATE)
    assert ops(model) == ["Exp", "Sin"]


def test_values_in_forward_functions_require_no_gradient() -> None:
    model = parse("g (float[4] x, int64[4] i) => (float[4] y) { f = Cast<to = 1>(i) y = Mul(x, f) }")
    run_pipeline(model, "update-requires-grad")
    assert {value.name: requires_grad_annotation(value) for value in ir.values_of(model.graph)} == {
        "x": False, "i": None, "f": False, "y": False,
    }  # fmt: skip
    run_pipeline(model, CREATE)
    assert not model.functions
    run_pipeline(model, "update-requires-grad{value=true}")
    assert requires_grad_annotation(model.graph.outputs[0]) is True


def test_options_in_text() -> None:
    text = "g (float[4] x, float[4] z) => (float[4] y) { a = Exp(x) b = Sin(a) c = Exp(z) d = Cos(c) y = Add(b, d) }"
    assert groups(created(text, "{wrt=z}")) == [["Exp", "Cos", "Add"]]
    assert groups(created(text, "{minimum=6}")) == []


@st.composite
def models(draw: st.DrawFn) -> ir.Model:
    """Graphs of floats with obstacles, constants, sizes and branches; values are read again and again."""
    seed, count = draw(st.integers(0, 2**32)), draw(st.integers(2, 24))
    return grown(random.Random(seed), count, passes_on=draw(st.booleans()))


def grown(choice: random.Random, count: int, *, passes_on: bool) -> ir.Model:
    nodes = []
    values = ["x", "z"]
    for number in range(count):
        name, one, other = f"v{number}", choice.choice(values[-6:]), choice.choice(values)
        kind = choice.choice(
            ["Exp", "Tanh", "Add", "Mul", "w", "half", "bar", "size", "If", "Identity", "float"]
        )
        match kind:
            case "Exp" | "Tanh":
                made = [helper.make_node(kind, [one], [name])]
            case "Add" | "Mul":
                made = [helper.make_node(kind, [one, other], [name])]
            case "w" | "half":
                made = [helper.make_node("Mul", [one, kind], [name])]
            case "bar":  # the gradient requirement of elements of a sequence is unknown
                made = [
                    helper.make_node("SequenceConstruct", [one], [f"s{name}"]),
                    helper.make_node("SequenceAt", [f"s{name}", "first"], [name]),
                ]
            case "size":
                made = [
                    helper.make_node("Shape", [other], [f"s{name}"]),
                    helper.make_node("Reshape", [one, f"s{name}"], [name]),
                ]
            case "If":
                inner = [
                    helper.make_node("Neg", [other], [f"n{name}"]),
                    helper.make_node("Sin", [f"n{name}"], [f"t{name}"]),
                ]
                more = [helper.make_node("Cos", [one], [f"c{name}"])]
                held = [
                    helper.make_node("SequenceConstruct", [f"c{name}"], [f"q{name}"]),
                    helper.make_node("SequenceAt", [f"q{name}", "first"], [f"e{name}"]),
                ]
                branches = [
                    helper.make_graph(body, f"g{name}", [], [helper.make_tensor_value_info(out, 1, None)])
                    for body, out in ((inner, f"t{name}"), ([*more, *held], f"e{name}"))
                ]
                made = [
                    helper.make_node("If", ["c"], [name], then_branch=branches[0], else_branch=branches[1])
                ]
            case "float":
                made = [
                    helper.make_node("Cast", ["i"], [f"f{name}"], to=1),
                    helper.make_node("Add", [one, f"f{name}"], [name]),
                ]
            case _:
                made = [helper.make_node("Identity" if passes_on else "Abs", [one], [name])]
        nodes += made
        values.append(name)
    outputs = choice.sample(values[2:], min(len(values) - 2, 3))
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", 1, ["N", 2]),
            helper.make_tensor_value_info("z", 1, ["N", 2]),
            helper.make_tensor_value_info("i", 7, ["N", 2]),
            helper.make_tensor_value_info("c", 9, []),
        ],
        [helper.make_tensor_value_info(name, 1, ["N", 2]) for name in outputs],
        [
            helper.make_tensor("w", 1, [2], [0.5, 0.25]),
            helper.make_tensor("half", 1, [], [0.5]),
            helper.make_tensor("first", 7, [], [0]),
        ],
    )
    return ir.from_proto(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from(["", "{minimum=1}", "{views=false}", "{wrt=x}"]))
def test_groups_preserve_results_and_can_be_inlined(model: ir.Model, options: str) -> None:
    """Inlining restores the graph before outlining, except for copies of constants."""
    run_pipeline(model, "dce,cse,constant-pooling")
    changed = created(model, options)
    for function in changed.functions.values():
        assert len(function.outputs) == len({*function.outputs})
        assert not {*function.outputs} & {*function.inputs}
    run_pipeline(changed, f"{INLINE}{{minimum=1000000}}")
    assert not changed.functions
    ir.validate(changed)
    assert agree(model, changed)
    if not any(node.op_type == "Identity" for graph in ir.graphs_of(model) for node in graph):
        assert shape_of(changed) == shape_of(model)


def shape_of(model: ir.Model) -> str:
    """The structure of a model, independent of names and of the position of constants."""
    model = model.clone()
    with context_for(model) as cx:
        for graph in ir.graphs_of(model):
            for node in [node for node in graph if node.op_type != "Constant"]:
                for index, value in enumerate(node.inputs):
                    tensor = ir.constant_of(value)
                    if tensor is not None:
                        cx.edit.set_input(node, index, cx.edit.constant_node(graph, tensor, "constant"))
    run_pipeline(model, "dce")
    return ir.fingerprint(model)


def test_chain_of_20_000_nodes() -> None:
    """There is no recursion over its depth."""
    kinds = ["Tanh", "Sin", "Neg"]
    nodes = [helper.make_node(kinds[k % 3], [f"v{k}"], [f"v{k + 1}"]) for k in range(20_000)]
    ends = [[helper.make_tensor_value_info(name, 1, ["N"])] for name in ("v0", "v20000")]
    proto = helper.make_model(helper.make_graph(nodes, "g", *ends), ir_version=8)
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 17))
    model = ir.from_proto(proto)
    run_pipeline(model, CREATE)
    assert ops(model) == ["group_0"] and len(groups(model)[0]) == 20_000


@pytest.mark.parametrize("count", [500, 2000])
def test_work_is_linear_in_the_model(count: int) -> None:
    """Each group requires a traversal of its own nodes, not of the graph."""
    model = grown(random.Random(7), count, passes_on=False)
    _, cx = run_pipeline(model, CREATE)
    assert len(model.functions) > count / 50
    assert cx.edit.epoch < 30 * count
