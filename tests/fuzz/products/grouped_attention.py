"""Random GroupQueryAttention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.products.product_graph import CASES, Array, ProductGraph

_PASTS = (1, 7, 33, 257)


def grouped_attention(g: ProductGraph) -> None:
    """A prompt without or with a past, or a step of decoding; its present keys and values are outputs.

    Inputs are finite: onnxruntime loses scores of NaN, dependent on their places.
    """
    g.is_finite = True
    is_step = g.chance(0.5)
    has_past = is_step or g.chance(0.3)
    batch = 1 if has_past and not is_step else g.pick(1, 2, 3)
    queries = 1 if is_step else g.pick(2, 5, 16, 33, 130)
    past: int | str = 0
    if has_past:
        past = g.pick(*_PASTS) if g.chance(0.5) else g.symbol(*_PASTS)
    shared = g.pick(1, 2, 3)
    heads, depth = shared * g.pick(1, 2, 4), g.pick(16, 32, 64)
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    operands = _operands(g, batch, queries, heads, shared, depth)
    operands += [g.input([batch, shared, past, depth]) if has_past else "" for _ in range(2)]
    total = g.total(past, queries)
    totals = np.array([g.size(total, case) for case in range(CASES)])

    def last(random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
        """The last key of each sequence, which may be shorter unless new keys follow a past."""
        most = int(totals[case]) - 1
        return np.full(shape, most) if has_past and not is_step else random.integers(0, most + 1, shape)

    def whole(random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
        return np.asarray(totals[case])

    operands += [g.input([batch], np.int32, last), g.input([], np.int32, whole)]
    if g.chance(0.5):
        turned = g.pick(8, depth // 2)
        operands += [_angles(g, total, turned, function) for function in (np.cos, np.sin)]
        attributes |= {"do_rotary": 1, "rotary_interleaved": g.pick(0, 1)}
    if g.chance(0.3):
        attributes["softcap"] = g.pick(2.0, 10.0)
    if g.chance(0.3):
        attributes["local_window_size"] = g.pick(1, 4, 40)
    if g.chance(0.3):
        attributes["scale"] = g.pick(0.1, 0.5)
    for value in g.node_with("GroupQueryAttention", 3, operands, domain="com.microsoft", **attributes):
        g.output(value)


def _operands(g: ProductGraph, batch: int, queries: int, heads: int, shared: int, depth: int) -> list[str]:
    """Queries, keys and values, or all in one operand."""
    if g.chance(0.3):
        return [g.input([batch, queries, (heads + 2 * shared) * depth]), "", ""]
    return [g.input([batch, queries, count * depth]) for count in (heads, shared, shared)]


def _angles(g: ProductGraph, positions: int | str, turned: int, function: Any) -> str:
    def draw(random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
        angles = np.random.default_rng([g.seed, case]).uniform(-3, 3, shape)  # equal for both functions
        return np.asarray(function(angles), np.float32)

    return g.input([positions, turned], draw=draw)
