"""Attention of the standard domain; :mod:`.contrib` has the attention operators of com.microsoft."""

from __future__ import annotations

from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact, ShapeTuple
from graphopt.analysis.symbolic import Dim, floordiv


@shape_rule("Attention")
def attention(node: NodeFacts) -> list[Fact]:
    """Y, present key, present value, and the attention scores (ONNX: Attention).

    Q, K and V are [batch, heads, sequence, size], or [batch, sequence, heads * size]; Y has the same layout.
    """
    q, k, v = (node.shape(index) for index in range(3))
    dtypes = [node.dtype(0), node.dtype(1), node.dtype(2), node.dtype(0)]
    if q is None or k is None or v is None:
        return [Fact(dtype) for dtype in dtypes]
    flat = len(q) == 3
    if flat:
        q_heads, kv_heads = node.attr_int("q_num_heads", 1), node.attr_int("kv_num_heads", 1)
        q, k, v = _split(q, q_heads), _split(k, kv_heads), _split(v, kv_heads)
    past_key, past_value = node.shape(4), node.shape(5)
    past: Dim = 0
    if node.has(4):
        past = node.fresh("past") if past_key is None else past_key[2]
    total = past + k[2]
    present_key = (k[0], k[1], total, k[3])
    present_value = (v[0], v[1], total if past_value is None else past_value[2] + v[2], v[3])
    y = (q[0], q[2], q[1] * v[3]) if flat else (q[0], q[1], q[2], v[3])
    shapes = [y, present_key, present_value, (q[0], q[1], q[2], total)]
    return [Fact(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]


def _split(shape: ShapeTuple, heads: int) -> ShapeTuple:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    return (shape[0], heads, shape[1], floordiv(shape[2], heads))
