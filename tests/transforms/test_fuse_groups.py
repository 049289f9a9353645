"""The nodes of groups, and their functions."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import Group, groups_of
from graphopt.ops import graphopt_operators
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import ATTENTION_STEPS, parse


def fused(text: str, pipeline: str = "fuse-groups") -> tuple[ir.Model, list[Group]]:
    """The model with its groups."""
    model = parse(text)
    with context_for(model) as cx:
        make_pipeline(pipeline).run(model, cx)
    return model, groups_of(model)


def ops(graph: ir.Graph | ir.Function) -> list[str]:
    return [node.op_type for node in graph if node.op_type != "Constant"]


GROUPS = {
    "pointwise": """g (float[N,C] x, float[C] b) => (float[N,C] y) {
        s = Sigmoid(x)
        m = Mul(x, s)
        y = Add(m, b)
    }""",
    "two results": """g (float[N,64] x, float[N,64] y) => (float[N,64] o, float[N,64] p) {
        h = Mul(x, y)
        o = Tanh(h)
        p = Sigmoid(h)
    }""",
    "a norm and what it is of": """g (float[N,64] x, float[N,64] y, float[64] w) => (float[N,64] h, float[N,64] o)
        <float two = {2}, float e = {0.00001}> {
        h = Add(x, y)
        p = Pow(h, two)
        m = ReduceMean <axes = [-1]> (p)
        q = Add(m, e)
        r = Sqrt(q)
        i = Reciprocal(r)
        n = Mul(h, i)
        o = Mul(n, w)
    }""",
    "softmax over the middle": """g (float[N,C,M] x) => (float[N,C,M] o) {
        e = Abs(x)
        o = Softmax <axis = 1> (e)
    }""",
    "rotary": """g (float[B,S,128] x, float[1,1,S,32] c, float[1,1,S,32] s) => (float[B,4,S,32] o)
        <int64[4] sh = {0,0,4,32}, int64[1] z = {0}, int64[1] h = {16}, int64[1] e = {32}, int64[1] ax = {3}> {
        r = Reshape(x, sh)
        t = Transpose <perm = [0,2,1,3]> (r)
        a = Slice(t, z, h, ax)
        b = Slice(t, h, e, ax)
        nb = Neg(b)
        k = Concat <axis = -1> (nb, a)
        u = Mul(t, c)
        v = Mul(k, s)
        o = Add(u, v)
    }""",
    "image": """g (uint8[1,H,W,3] x, float[3] mean, float[3] std) => (float[1,3,H,W] o) <float k = {255}> {
        c = Cast <to = 1> (x)
        d = Div(c, k)
        e = Sub(d, mean)
        f = Div(e, std)
        o = Transpose <perm = [0,3,1,2]> (f)
    }""",
}


@pytest.mark.parametrize("name", GROUPS)
def test_model_becomes_one_group_with_a_kernel(name: str) -> None:
    text = GROUPS[name]
    model, groups = fused(text)
    assert len(groups) == 1 and groups[0].kernel is not None, groups
    assert [op for op in ops(model.graph) if op != "Reshape"] == [groups[0].name]
    free = {"Reshape"}
    inside = [op for op in ops(groups[0].function) if op not in free]
    assert sorted(inside) == sorted(op for op in ops(parse(text).graph) if op not in free)
    # a second run gives the same result
    again = ir.from_proto(ir.to_proto(model))
    with context_for(again) as cx:
        make_pipeline("fuse-groups").run(again, cx)
    assert [group.name for group in groups_of(again)] == [groups[0].name]


LEFT = {
    "one node": ("g (float[N] x) => (float[N] y) { y = Exp(x) }", "Exp"),
    "sizes": (
        """g (float[N,M] x) => (int64[1] y) <int64 i = {0}, int64[1] two = {2}> {
        s = Shape(x)
        a = Gather(s, i)
        b = Mul(a, two)
        y = Add(b, two)
    }""",
        "Mul",
    ),
    "beside a convolution": (
        """g (float[1,3,8,8] x, float[3,3,1,1] w) => (float[1,3,8,8] z) {
        y = Conv(x, w)
        a = Abs(y)
        z = Neg(a)
    }""",
        "Abs",
    ),
    "the scale of a product": (
        """g (float[4,N,64] x, float[4,64,N] k) => (float[4,N,N] z) <float s = {0.125}> {
        p = MatMul(x, k)
        z = Mul(p, s)
    }""",
        "Mul",
    ),
    "what becomes a QuickGelu": (
        "g (float[N,64] x) => (float[N,64] y) { s = Sigmoid(x) y = Mul(x, s) }",
        "Mul",
    ),
    "the transposition of a product": (
        """g (float[2,N,64] x, float[2,M,64] k) => (float[2,N,M] z) {
        a = Abs(k)
        t = Transpose <perm = [0,2,1]> (a)
        z = MatMul(x, t)
    }""",
        "Transpose",
    ),
    "what is kept in single precision between nodes of half": (
        """g (float16[N,64] x, float16[64,64] w) => (float16[N,64] z) {
        p = MatMul(x, w)
        a = Abs(p)
        z = Exp(a)
    }""",
        "Exp",
    ),
    "a broadcast that is not known": (
        """g (float[N] x, float[M] y) => (float[K] z) {
        a = Add(x, y)
        z = Exp(a)
    }""",
        "Add",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_models_without_groups(name: str) -> None:
    text, op = LEFT[name]
    model, groups = fused(text)
    assert not groups and op in ops(model.graph)
    assert graphopt_operators.KERNEL_SIGNATURES not in model.metadata_props


@pytest.mark.parametrize("policy", ["fusion", "autodiff"])
def test_nonstandard_operators_of_onnxruntime_are_not_in_functions(policy: str) -> None:
    model = parse(
        """g (float[N,64] x, float[64] w) => (float[N,64] y) {
        a = Abs(x)
        b = Neg(a)
        y = LayerNormalization <axis = -1> (b, w)
    }""",
        opset=12,
    )
    found = graphopt.partition(model, policy)
    reasons = {reason.op: reason.reason for reason in found.reasons}
    assert "in functions" in reasons["LayerNormalization"]
    assert [group.ops for group in found.groups] == [{"Abs": 1, "Neg": 1}]
    assert graphopt.verify(model, found.outlined()).ok


def test_tanh_gelu_is_a_group() -> None:
    text = """g (float[N,64] x) => (float[N,64] y) <float k = {0.044715}, float c = {0.7978845608}, float one = {1},
        float h = {0.5}, float three = {3}> {
        p = Pow(x, three)
        q = Mul(p, k)
        r = Add(x, q)
        s = Mul(r, c)
        u = Tanh(s)
        v = Add(u, one)
        w = Mul(x, v)
        y = Mul(w, h)
    }"""
    model, _ = graphopt.optimize(parse(text), pipeline="native", verify=False)
    assert [ops(group.function) for group in groups_of(model)] == [["FastGelu"]]


def group_normalization(read: str = "") -> str:
    """GroupNormalization by Reshape to groups, and SiLU; the shape of the groups has no single spatial axes."""
    return f"""g (float[B,32,H,W] x) => (float[B,32,H,W] y{", float[B,8,M] z" if read else ""})
        <int64[3] groups = {{0, 8, -1}}, float[8] one = {{1,1,1,1,1,1,1,1}}, float[8] zero = {{0,0,0,0,0,0,0,0}}> {{
        s = Shape(x)
        r = Reshape(x, groups)
        n = InstanceNormalization(r, one, zero)
        t = Reshape(n, s)
        u = Sigmoid(t)
        y = Mul(t, u)
        {read}
    }}"""


def test_a_group_contains_the_move_before_it_that_determines_its_sizes() -> None:
    model, groups = fused(group_normalization())
    assert [ops(group.function) for group in groups] == [
        ["Reshape", "InstanceNormalization", "Reshape", "Sigmoid", "Mul"]
    ]
    assert groups[0].kernel is not None and ops(model.graph) == ["Shape", groups[0].name]


def test_a_move_with_other_readers_is_not_part_of_a_group() -> None:
    model, groups = fused(group_normalization("z = MatMul(r, r)"))
    assert all("Reshape" not in ops(group.function)[:1] for group in groups)
    assert "Reshape" in ops(model.graph)


def test_scaling_without_a_product_is_fused() -> None:
    _, groups = fused("g (float[N,64] x) => (float[N,64] y) <float s = {3}> { a = Abs(x) y = Mul(a, s) }")
    assert [ops(group.function) for group in groups] == [["Abs", "Mul"]]


@pytest.mark.parametrize(
    "read", ["Concat <axis = 2> (y, y)", "Slice(y, start, end, axis)", "Gather <axis = 2> (y, place)"]
)
def test_broadcast_operands_are_stored_by_another_group(read: str) -> None:
    _, groups = fused(
        "g (float[N,4,6] x) => (float[N,4,6] y, float[N,4,M] z)"
        " <int64[1] start = {0}, int64[1] end = {2}, int64[1] axis = {2}, int64[1] place = {0}> {"
        f"a = Abs(x) y = Exp(a) b = {read} z = Neg(b) }}"
    )
    for group in groups:
        assert group.kernel is not None
        (segment, *_) = group.kernel.segments
        assert len({store.access.port for store in segment.stores}) == 1, group.kernel


def test_equal_groups_share_a_function() -> None:
    model, groups = fused("""g (float[128,8] x, float[8,8] w) => (float[128,8] y) {
        a = Tanh(x)
        b = Mul(x, a)
        m = MatMul(b, w)
        c = Tanh(m)
        y = Mul(m, c)
    }""")
    assert [(group.calls, len(group.function)) for group in groups] == [(2, 2)]
    assert ops(model.graph) == [groups[0].name, "MatMul", groups[0].name]


def test_a_changed_function_has_no_kernel() -> None:
    model, (group,) = fused(GROUPS["pointwise"])
    node = next(node for node in group.function if node.op_type == "Sigmoid")
    with context_for(model) as cx:
        other = cx.edit.make_node("Tanh", node.inputs, {}, name="other")
        cx.edit.insert_before(node, [other])
        cx.edit.replace(node.outputs[0], other.outputs[0])
        cx.edit.remove(node)
    (changed,) = groups_of(model)
    assert changed.kernel is None and changed.reason == "its contents do not match its name"


def test_types_of_group_results_are_declared() -> None:
    model, _ = fused("""g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
        a = Tanh(x)
        b = Mul(x, a)
        y = MatMul(b, w)
    }""")
    (value,) = model.graph[0].outputs
    assert value.dtype == ir.DataType.FLOAT and value.shape is not None
    assert [str(dim) for dim in value.shape] == ["N", "8"]


@pytest.mark.parametrize(
    ("end", "declared", "sizes"),
    [
        ("s = Mul(r, x)", "s", [None, 8]),
        ("s = Mul(r, x)", "float[3, 8] s", [3, 8]),
        ("u = Mul(r, x) s = MatMul(u, w)", "s", [None, 8]),
    ],
)
def test_sizes_of_group_results_in_bodies_are_declared(
    end: str, declared: str, sizes: list[int | None]
) -> None:
    model, groups = fused(f"""g (int64 n, float[N, 8] x, float[8, 8] w) => (float[A, B, C] y) {{
        y = Loop(n, , ) <body = b (int64 i, bool c) => (bool d, {declared})
            {{ d = Identity(c) p = Mul(x, x) q = Tanh(p) r = Sigmoid(q) {end} }}>
    }}""")
    (body,) = (graph for graph in ir.graphs_of(model) if graph.name == "b")
    (call,) = (node for node in body if node.op_type == groups[0].name)
    shape = call.outputs[0].shape
    assert shape is not None and [dim if isinstance(dim, int) else None for dim in shape] == sizes


ATTENTION = f"""g (float[B,S,32] q, float[B,S,32] k, float[B,S,32] v, float[B,1,1,S] mask) => (float[B,S,32] y)
    <int64[4] heads = {{0, 0, 4, 8}}, int64[3] rows = {{0, 0, 32}}, float scale = {{0.35355339}}> {{
    {
    ATTENTION_STEPS.replace("Softmax <axis = -1>(t)", "Softmax <axis = -1>(masked)").replace(
        "p = ", "masked = Add(t, mask) p = "
    )
}
    }}"""


def test_masked_attention_becomes_a_native_kernel() -> None:
    model, _ = graphopt.optimize(parse(ATTENTION), pipeline="native", verify=False)
    assert "MultiHeadAttention" not in ops(model.graph)
    assert [group.name.rpartition("_")[0] for group in groups_of(model)] == ["multi_head_attention"]


def test_masked_attention_of_halves_is_not_fused_before_native_kernels() -> None:
    halves = ATTENTION.replace("float", "float16").replace("float16 scale =", "float single =")
    halves = parse(halves.replace("> {", "> { scale = Cast <to = 10> (single)", 1))
    model, _ = graphopt.optimize(halves, pipeline="native", verify=False)
    assert "MultiHeadAttention" not in ops(model.graph)


def test_masked_attention_is_fused_without_native_kernels() -> None:
    fused_model, _ = graphopt.optimize(parse(ATTENTION), pipeline="O3", verify=False)
    assert "MultiHeadAttention" in ops(fused_model.graph)


@pytest.mark.parametrize("copy", ["Identity(a)", "Neg(x)"])
def test_kernel_has_the_outputs_of_a_function_without_aliases(copy: str) -> None:
    model, groups = fused(f"""aliases (float[N,64] x, float[64,64] w)
        => (float[N,64] y, float[N,64] z, float[N,64] p) {{
        a = Neg(x)
        y = Sigmoid(a)
        c = {copy}
        z = Add(c, y)
        p = MatMul(c, w)
    }}""")
    read = groups_of(ir.from_proto(ir.to_proto(model)))
    assert ["Neg", "Sigmoid", "Add"] in [ops(group.function) for group in groups]
    assert [group.kernel for group in groups] == [group.kernel for group in read]
