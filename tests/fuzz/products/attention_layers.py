"""Random Attention and MultiHeadAttention, also with past keys, and GroupQueryAttention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.grouped_attention import grouped_attention
from tests.fuzz.products.product_graph import Array, ProductGraph

_LENGTHS = (1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 100)
_KEYS = (1, 2, 7, 16, 31, 33, 64, 255, 256, 257, 300, 513)
#: Numbers in masks that hide a key.
_HIDDEN = (-np.inf, -1e9, float(np.finfo(np.float32).min), -10000.0)


class _Sizes(NamedTuple):
    """Sizes of queries (``rows``), new and past keys, and heads of keys (``depth``) and of values (``width``)."""

    batch: int | str
    rows: int | str
    length: int | str
    past: int | str | None
    depth: int
    width: int

    def keys(self, g: ProductGraph) -> int | str:
        """The number of past and new keys."""
        return self.length if self.past is None else g.total(self.past, self.length)


def attention_layers(g: ProductGraph) -> None:
    """One attention, now and then with the same values as keys, and elementwise nodes after it."""
    g.opset = 23
    op, has_past = g.cycle(
        *(("Attention", False), ("MultiHeadAttention", True), ("GroupQueryAttention", True)),
        *(("MultiHeadAttention", False), ("Attention", True)),
    )
    if op == "GroupQueryAttention":
        grouped_attention(g)
        return
    depth = g.pick(1, 3, 8, 16, 17, 32, 64)
    width = depth if g.chance(0.7) else g.pick(1, 5, 16, 33)
    queries, keys = g.pick(*_LENGTHS), g.pick(*_KEYS)
    rows = queries if g.chance(0.5) else g.symbol(queries, g.pick(*_LENGTHS), g.pick(*_LENGTHS), 1)
    length = keys if g.chance(0.5) else g.symbol(keys, g.pick(*_LENGTHS), 257, 1)
    batch = g.pick(1, 2) if g.chance(0.5) else g.symbol(1, 2, 3)
    attributes: dict[str, Any] = {"scale": g.pick(0.5, 1.0, 0.125)} if g.chance(0.3) else {}
    past = None
    if has_past:
        past = g.pick(1, 7, 64, 300) if g.chance(0.5) else g.symbol(0, 3, 257, 1)
        width = depth  # of equal sizes in onnxruntime
    sizes = _Sizes(batch, rows, length, past, depth, width)
    value, dims = (_attention if op == "Attention" else _multi_head)(g, sizes, attributes)
    if has_past:
        g.output(value)  # the template has no epilogue beside present keys
    else:
        add_epilogue(g, value, dims, most=2)


def _with_present(
    g: ProductGraph, op: str, operands: list[str], sizes: _Sizes, heads: int, **attributes: Any
) -> str:
    """The result of attention, whose present keys and values become outputs if it has past ones.

    Args:
        operands: all before the past.
    """
    if sizes.past is None:
        return g.node(op, operands, **attributes)
    past = [g.input([sizes.batch, heads, sizes.past, sizes.depth]) for _ in range(2)]
    value, *present = g.node_with(op, 3, [*operands, *past], **attributes)
    for each in present:
        g.output(each)
    return value


def _operands(g: ProductGraph, shapes: Sequence[list[int | str]]) -> list[str]:
    """Inputs, the last two of which may be the same."""
    names = [g.input(shape) for shape in shapes[:2]]
    return [*names, names[1] if shapes[1] == shapes[2] and g.chance(0.1) else g.input(shapes[2])]


def _attention(g: ProductGraph, sizes: _Sizes, attributes: dict[str, Any]) -> tuple[str, list[int | str]]:
    batch, rows, length, _, depth, width = sizes
    shared = g.pick(1, 2, 3, 4)
    heads = shared * g.pick(1, 1, 2)
    dims: list[int | str]
    if g.chance(0.5):
        shapes = [[batch, heads, rows, depth], [batch, shared, length, depth], [batch, shared, length, width]]
        dims = [batch, heads, rows, width]
    else:
        shapes = [
            [batch, rows, heads * depth],
            [batch, length, shared * depth],
            [batch, length, shared * width],
        ]
        dims = [batch, rows, heads * width]
        attributes |= {"q_num_heads": heads, "kv_num_heads": shared}
    operands = _operands(g, shapes)
    if g.chance(0.6):
        mask = [batch, heads, rows, sizes.keys(g)]
        operands.append(_mask(g, mask, g.pick(2, 3, 4), g.chance(0.5)))
    else:
        operands.append("")
        if rows == length and g.chance(0.5):
            attributes["is_causal"] = 1
    return _with_present(g, "Attention", operands, sizes, shared, **attributes), dims


def _multi_head(g: ProductGraph, sizes: _Sizes, attributes: dict[str, Any]) -> tuple[str, list[int | str]]:
    batch, rows, length, past, depth, width = sizes
    heads = g.pick(1, 2, 3, 4)
    shapes: list[list[int | str]]
    if past is None and g.chance(0.4):
        shapes = [[batch, heads, length, depth], [batch, heads, length, depth]]  # of equal sizes
        width = depth
    else:
        shapes = [[batch, length, heads * depth], [batch, length, heads * width]]
    operands = _operands(g, [[batch, rows, heads * depth], *shapes])
    operands += ["", ""]
    if g.chance(0.5):
        operands.append(_mask(g, [batch, heads, rows, sizes.keys(g)], 4, False))
    else:
        operands.append("")
        if rows == length and g.chance(0.3):
            attributes["unidirectional"] = 1
    attributes |= {"num_heads": heads, "domain": "com.microsoft"}
    value = _with_present(g, "MultiHeadAttention", operands, sizes, heads, **attributes)
    return value, [batch, rows, heads * width]


def _mask(g: ProductGraph, dims: list[int | str], rank: int, is_bool: bool) -> str:
    """Booleans, or floats to add. In one case, a row hides all keys: its result is zero even if values are NaN."""
    dims = list(dims)
    for axis in (0, 1):
        if g.chance(0.3):
            dims[axis] = 1

    hidden: Any = False if is_bool else np.float32(g.pick(*_HIDDEN))

    def draw(random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
        shown = random.random(shape) < 0.7
        array = (
            shown if is_bool else np.where(shown, random.standard_normal(shape), hidden).astype(np.float32)
        )
        if array.size:
            array[..., 0] = True if is_bool else 0.5
            if case == 1:
                array[..., random.integers(shape[-2]), :] = hidden
        return np.asarray(array)

    return g.input(dims[4 - rank :], np.bool_ if is_bool else np.float32, draw)
