"""Attention of the standard and of onnxruntime: gradients against differences, and node counts."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)
HEADS = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6)}
ROWS = {"q": (2, 3, 32), "k": (2, 5, 16), "v": (2, 5, 12)}
OWN = ', "com.microsoft" : 1'
HEADER = f'<ir_version: 10, opset_import: ["" : 24{OWN}]> '


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def checked(call: str, feeds: dict[str, np.ndarray], *, outputs: str = "y", twice: bool = False) -> ir.Model:
    """A float32 model of one node whose inputs have dynamic dims except for the last ones."""
    inputs = []
    for name, value in feeds.items():
        dims = [f"{name}{axis}" for axis in range(value.ndim)]
        dims[-1:] = [str(value.shape[-1])] if value.ndim else []
        kind = {"float32": "float"}.get(value.dtype.name, value.dtype.name)
        inputs.append(f"{kind}{'[' + ','.join(dims) + ']' if dims else ''} {name}")
    results = ", ".join(f"float {name}" for name in outputs.split(", ") if name)
    text = f"{HEADER} m ({', '.join(inputs)}) => ({results}) {{ {outputs} = {call} }}"
    return check(text, feeds, tolerance=4e-3, twice=twice)


def of(shapes: dict[str, tuple[int, ...]], **more: np.ndarray) -> dict[str, np.ndarray]:
    return {**{name: floats(*shape) for name, shape in shapes.items()}, **more}


def test_gradient_of_attention_has_few_nodes() -> None:
    call = "Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)"
    kinds = ops(checked(call, of({name: (2, 3, 16) for name in "qkv"})))
    assert kinds.count("Attention") == 1 and kinds.count("Softmax") == 1
    assert kinds.count("MatMul") == 5 and len(kinds) <= 40


def test_softmax_weights_are_computed_at_most_once() -> None:
    text = "m (float[B,2,S,8] q, float[B,2,S,8] k, float[B,2,S,8] v) => (float y) { y = Attention(q, k, v) }"
    joint = differentiate(parse(text, opset=23), ["y"], ["v"])
    assert ops(joint.model).count("MatMul") == 2  # scores, and what flows into values


@pytest.mark.parametrize(
    "attributes", ["q_num_heads=4, kv_num_heads=2", "q_num_heads=4, kv_num_heads=2, is_causal=1, softcap=2.0"]
)
def test_shared_key_value_heads(attributes: str) -> None:
    checked(f"Attention<{attributes}>(q, k, v)", of(ROWS), twice="softcap" in attributes)


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 3, 5), (1, 4, 3, 5)])
def test_masks(shape: tuple[int, ...]) -> None:
    checked("Attention(q, k, v, m)", of(HEADS, m=floats(*shape)))
    checked("Attention<scale=0.5>(q, k, v, m)", of(HEADS, m=(floats(*shape) > 0) | (np.arange(5) == 2)))


def test_fully_masked_queries_have_zero_gradients() -> None:
    seen = np.ones((3, 5), bool)
    seen[1] = False
    text = """m (float[B,2,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v, bool[S,T] m) => (float[B,2,S,8] y)
        { y = Attention(q, k, v, m) }"""
    joint = differentiate(parse(text, opset=23), ["y"], ["q", "k", "v"])
    feeds = {"q": floats(1, 2, 3, 8), "k": floats(1, 2, 5, 8), "v": floats(1, 2, 5, 8), "m": seen}
    found = run(joint.model, {**feeds, "cotangent.y": floats(1, 2, 3, 8)})
    assert np.all(found["grad.q"][:, :, 1] == 0) and np.all(found["grad.q"][:, :, 0] != 0)
    assert all(np.isfinite(found[f"grad.{name}"]).all() for name in "qkv")


@pytest.mark.parametrize(("attributes", "row"), [("", "0,0,0,0,0"), ("<is_causal=1>", "0,0,1,1,1")])
def test_queries_fully_masked_by_a_constant_mask(attributes: str, row: str) -> None:
    text = f"""m (float[B,2,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v) => (float[B,2,S,8] y)
        <bool[3,5] m = {{1,1,1,1,1,{row},1,1,1,1,1}}> {{ y = Attention{attributes}(q, k, v, m) }}"""
    joint = differentiate(parse(text, opset=23), ["y"], ["q", "k", "v"])
    feeds = {"q": floats(1, 2, 3, 8), "k": floats(1, 2, 5, 8), "v": floats(1, 2, 5, 8)}
    found = run(joint.model, {**feeds, "cotangent.y": floats(1, 2, 3, 8)})
    assert np.all(found["grad.q"][:, :, 1] == 0) and np.all(found["grad.q"][:, :, 2] != 0)
    assert all(np.isfinite(found[f"grad.{name}"]).all() for name in "qkv")


def test_cached_keys_and_key_counts() -> None:
    past = {"pk": floats(2, 2, 2, 8), "pv": floats(2, 2, 2, 6)}
    call = "Attention<q_num_heads=4, kv_num_heads=2, is_causal=1>(q, k, v, , pk, pv)"
    checked(call, of(ROWS, **past), outputs="y, present_k, present_v")
    checked("Attention<is_causal=1>(q, k, v, , , , n)", of(HEADS, n=np.array([5, 2])))


def test_gradients_of_returned_scores() -> None:
    checked("Attention<qk_matmul_output_mode=3>(q, k, v)", of(HEADS), outputs="y, , , p")


SAME = {"q": (2, 4, 8), "k": (2, 4, 8), "v": (2, 4, 8)}


@pytest.mark.parametrize(
    ("attributes", "inputs", "more"),
    [
        ("", "", {}),
        (
            ", scale=0.3",
            ", b, m, a",
            {"b": floats(24), "m": np.array([3, 2], np.int32), "a": floats(1, 2, 4, 4)},
        ),
        (", unidirectional=1", ", , m", {"m": np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.int32)}),
    ],
)
def test_multi_head_attention(attributes: str, inputs: str, more: dict[str, np.ndarray]) -> None:
    call = f"com.microsoft.MultiHeadAttention<num_heads=2{attributes}>(q, k, v{inputs})"
    checked(call, of(SAME, **more), twice=not more)


def test_multi_head_attention_with_cache() -> None:
    call = "com.microsoft.MultiHeadAttention<num_heads=2, unidirectional=1>(q, k, v, , , , pk, pv)"
    past = {"pk": floats(2, 2, 3, 4), "pv": floats(2, 2, 3, 4)}
    checked(call, of(SAME, **past), outputs="y, present_k, present_v")


def test_multi_head_attention_with_rank_4_keys() -> None:
    shapes = {"q": (2, 3, 8), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4)}
    checked("com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v, b)", of(shapes, b=floats(24)))


def test_attention_with_projections() -> None:
    feeds = {"x": floats(2, 3, 5), "w": floats(5, 24), "b": floats(24), "p": floats(2, 2, 2, 3, 4)}
    call = "com.microsoft.Attention<num_heads=2, unidirectional=1>(x, w, b, , p)"
    checked(call, feeds, outputs="y, present")
    mask = np.array([3, 2, 1, 0], np.int32)  # the ends of keys, and where they start
    text = """m (float[2,3,5] x, float[5,24] w, float[24] b, int32[4] m) => (float y)
        { y = com.microsoft.Attention<num_heads=2>(x, w, b, m) }"""
    check(HEADER + text, {"x": feeds["x"], "w": feeds["w"], "b": feeds["b"], "m": mask}, tolerance=4e-3)


GROUPED = {"q": (2, 3, 64), "k": (2, 3, 32), "v": (2, 3, 32)}


@pytest.mark.parametrize(
    ("attributes", "inputs", "ends", "more"),
    [
        ("", "", (2, 2), {}),
        (", softcap=1.5, local_window_size=2", ", , , , , s", (2, 2), {"s": floats(4)}),
        (", smooth_softmax=1", ", , , , a", (1, 2), {"a": floats(2, 1, 3, 3)}),
        (", causal=0", "", (1, 2), {}),
    ],
)
def test_group_query_attention(
    attributes: str, inputs: str, ends: tuple[int, int], more: dict[str, np.ndarray]
) -> None:
    call = f"com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2{attributes}>"
    given = {"e": np.array(ends, np.int32), "t": np.array(3, np.int32), **more}
    checked(f"{call}(q, k, v, , , e, t{inputs})", of(GROUPED, **given), twice=not more)


def test_group_query_attention_with_packed_input_rotary_embedding_and_cache() -> None:
    angles = RANDOM.uniform(0, 3, (12, 8)).astype(np.float32)
    given = {"q": floats(2, 1, 128), "pk": floats(2, 2, 4, 16), "pv": floats(2, 2, 4, 16)}
    sizes = {"e": np.array([4, 2], np.int32), "t": np.array(5, np.int32)}
    call = """com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, do_rotary=1>(
        q, , , pk, pv, e, t, cos, sin)"""
    inputs = """float[B,S,128] q, float[B,2,P,16] pk, float[B,2,P,16] pv, int32[B] e, int32 t,
        float[12,8] cos, float[12,8] sin"""
    text = f"{HEADER} m ({inputs}) => (float y) {{ y, present_k, present_v = {call} }}"
    feeds = {**given, **sizes, "cos": np.cos(angles), "sin": np.sin(angles)}
    check(text, feeds, wrt=["q", "pk", "pv"], tolerance=4e-3)


@pytest.mark.parametrize("own", [False, True])
def test_gradient_of_rotary_embedding_is_a_rotary_embedding(own: bool) -> None:
    angles = RANDOM.uniform(0, 3, (8, 2)).astype(np.float32)
    feeds = {"x": floats(2, 3, 16), "at": np.array([[0, 1, 2], [4, 2, 3]])}
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    domain, order = ("com.microsoft.", "x, at, cos, sin") if own else ("", "x, cos, sin, at")
    call = f"{domain}RotaryEmbedding<num_heads=2, rotary_embedding_dim=4, interleaved=1>({order})"
    inputs = "float[B,S,16] x, int64[B,S] at, float[8,2] cos, float[8,2] sin"
    text = f"{HEADER} m ({inputs}) => (float y) {{ y = {call} }}"
    joint = check(text, {**feeds, **tables}, wrt=["x"], twice=True)
    assert ops(joint) == ["RotaryEmbedding", "Neg", "RotaryEmbedding"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "float[2,3,2,3,4] q) => (float y) { y = com.microsoft.MultiHeadAttention<num_heads=2>(q)",
            "input 1",
        ),
        (
            "float[1,2,8] q, float[1,5,8] k) => (float y) "
            "{ y = com.microsoft.MultiHeadAttention<num_heads=2, unidirectional=1>(q, k, k)",
            "more keys than queries",
        ),
        (
            "float[1,2,8] q, float[8,24] w, float[24] b) => (float y) "
            "{ y = com.microsoft.Attention<num_heads=2, do_rotary=1>(q, w, b)",
            "applies a rotary embedding",
        ),
    ],
)
def test_unsupported_attention_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NoGradient, match=reason):
        differentiate(parse(f"m ({text} }}", opset=18, domains=OWN), ["y"], ["q"])
