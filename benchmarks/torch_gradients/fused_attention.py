"""onnxruntime's attention operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.torch_gradients.attention import (
    attend,
    floats,
    hide,
    make_case,
    rows,
    split,
    tables,
    turn,
    up_to,
    with_past,
)
from benchmarks.torch_gradients.common import Case

#: The score of masked keys.
_FILTER = -10000.0


def cases() -> Iterator[Case]:
    """Masks, biases, caches, padded batches, windows, sinks and rotary embeddings."""
    yield from _multi_head()
    yield from _projected()
    yield from _grouped()
    yield from _grouped_past()


def _ints(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int32)


def _multi_head() -> Iterator[Case]:
    n, d, s, t = 2, 4, 3, 4

    def case(
        label: str,
        inputs: str,
        more: dict[str, np.ndarray],
        torch: Callable[..., Any],
        a: str = "",
        **kw: Any,
    ) -> Case:
        feeds = {"q": floats(2, s, n * d), "k": floats(2, t, n * d), "v": floats(2, t, n * d), **more}
        call = f"com.microsoft.MultiHeadAttention<num_heads={n}{a}>({inputs})"
        return make_case(f"MultiHeadAttention {label}", call, feeds, torch, **kw)

    def heads(q: Any, k: Any, v: Any, **more: Any) -> Any:
        return rows(attend(*(x if x.ndim == 4 else split(x, n) for x in (q, k, v)), **more))

    def biased(q: Any, k: Any, v: Any, b: Any) -> Any:
        x, y, z = b.split([q.shape[2], q.shape[2], len(b) - 2 * q.shape[2]])
        return heads(q + x, *((k, v) if k.ndim == 4 else (k + y, v + z)))

    by_heads = {"k": floats(2, n, t, d), "v": floats(2, n, t, d)}
    other, bias, same = {"v": floats(2, t, n * 6)}, {"b": floats(3 * n * d)}, {"q": floats(2, t, n * d)}
    yield case("plain", "q, k, v", {}, heads)
    yield case("scale", "q, k, v", {}, lambda *x: heads(*x, scale=0.7), ", scale=0.7")
    yield case("values of another size", "q, k, v", other, heads)
    yield case("by heads", "q, k, v", by_heads, heads)
    yield case("bias", "q, k, v, b", bias, biased)
    yield case("bias, by heads", "q, k, v, b", {**by_heads, **bias}, biased)
    wide = {**other, "b": floats(2 * n * d + n * 6)}
    yield case("bias, values of another size", "q, k, v, b", wide, biased)
    for shape in ((2, n, s, t), (1, n, s, t), (1, 1, s, t), (2, 1, s, t)):
        added = {"a": floats(*shape)}
        yield case(f"added {shape}", "q, k, v, , , a", added, lambda *x: heads(*x[:-1], bias=x[-1]))
    causal = ", unidirectional=1"
    yield case("causal", "q, k, v", same, lambda *x: heads(*x, bias=hide(up_to(t, t))), causal)
    keys = _ints([1, 1, 1, 0], [1, 1, 0, 0])
    each = np.stack([keys, keys[::-1], keys], 1)
    packed = _ints(3, 2, 0, 3, 5, 0, 4, 6)
    for label, mask in (("keys", keys), ("counts", _ints(3, 2)), ("packed", packed), ("each", each)):

        def masked(
            q: Any, k: Any, v: Any, m: Any, seen: Any = each if mask is each else keys[:, None]
        ) -> Any:
            import torch

            return heads(q, k, v, bias=hide(torch.tensor(seen[:, None] > 0), _FILTER))

        yield case(f"mask of {label}", "q, k, v, , m", {"m": mask}, masked)
    for c in (0, 1):

        def of_a_past(q: Any, k: Any, v: Any, pk: Any, pv: Any, c: int = c) -> Any:
            return with_past(split(q, n), split(k, n), split(v, n), pk, pv, causal=c)

        given = {**same, "pk": floats(2, n, 2, d), "pv": floats(2, n, 2, d)}
        attributes, inputs = f", unidirectional={c}", "q, k, v, , , , pk, pv"
        yield case(f"past causal={c}", inputs, given, of_a_past, attributes, outputs=3)


def _projected() -> Iterator[Case]:
    n, d, s, width = 2, 4, 3, 5

    def case(
        label: str,
        inputs: str,
        more: dict[str, np.ndarray],
        torch: Callable[..., Any],
        a: str = "",
        **kw: Any,
    ) -> Case:
        feeds = {"x": floats(2, s, width), "w": floats(width, 3 * n * d), "b": floats(3 * n * d), **more}
        call = f"com.microsoft.Attention<num_heads={n}{a}>({inputs})"
        return make_case(f"own Attention {label}", call, feeds, torch, known=("w",), **kw)

    def heads(x: Any, w: Any, b: Any, sizes: tuple[int, ...] = (n * d,) * 3) -> tuple[Any, Any, Any]:
        q, k, v = (split(part, n) for part in (x @ w + b).split(sizes, 2))
        return q, k, v

    keys = _ints([1, 1, 0], [0, 1, 1])

    def masked(x: Any, w: Any, b: Any, m: Any) -> Any:
        import torch

        return rows(attend(*heads(x, w, b), bias=hide(torch.tensor(keys[:, None, None] > 0), _FILTER)))

    def of_a_past(x: Any, w: Any, b: Any, p: Any) -> Any:
        import torch

        y, k, v = with_past(*heads(x, w, b), p[0], p[1], causal=1)
        return y, torch.stack([k, v])

    def causal_heads(x: Any, w: Any, b: Any) -> Any:
        return rows(attend(*heads(x, w, b), bias=hide(up_to(s, s))))

    causal = ", unidirectional=1"
    yield case("plain", "x, w, b", {}, lambda *x: rows(attend(*heads(*x))))
    yield case("causal", "x, w, b", {}, causal_heads, causal)
    yield case("mask of keys", "x, w, b, m", {"m": keys}, masked)
    past = {"p": floats(2, 2, n, 2, d)}
    yield case("past", "x, w, b, , p", past, of_a_past, causal, outputs=2)
    sizes = (n * d, n * d, n * 6)
    wide = {"w": floats(width, sum(sizes)), "b": floats(sum(sizes))}
    attributes = f", qkv_hidden_sizes=[{n * d}, {n * d}, {n * 6}]"
    label = "values of another size"
    yield case(label, "x, w, b", wide, lambda x, w, b: rows(attend(*heads(x, w, b, sizes))), attributes)


_MANY, _FEW, _SIZE, _QUERIES = 4, 2, 16, 3
_ORDER = ["q", "k", "v", "pk", "pv", "ends", "total", "cos", "sin", "at", "bias", "sinks"]


def _grouped_case(
    label: str, feeds: dict[str, np.ndarray], torch: Callable[..., Any], a: str = "", **kw: Any
) -> Case:
    feeds = {name: feeds[name] for name in _ORDER if name in feeds}
    inputs = ", ".join(name if name in feeds else "" for name in _ORDER).rstrip(", ")
    call = f"com.microsoft.GroupQueryAttention<num_heads={_MANY}, kv_num_heads={_FEW}{a}>({inputs})"
    known = ("q", "k", "v", "pk", "pv", "cos", "sin")
    return make_case(f"GroupQueryAttention {label}", call, feeds, torch, known=known, **kw)


def _rows(batches: int, queries: int) -> dict[str, np.ndarray]:
    widths = {"q": _MANY * _SIZE, "k": _FEW * _SIZE, "v": _FEW * _SIZE}
    return {name: floats(batches, queries, width) for name, width in widths.items()}


def _grouped() -> Iterator[Case]:
    n, m, s = _MANY, _FEW, _QUERIES

    def case(
        label: str, more: dict[str, np.ndarray], torch: Callable[..., Any], a: str = "", **kw: Any
    ) -> Case:
        given = {**_rows(2, s), "ends": _ints(s - 1, s - 1), "total": np.array(s, np.int32), **more}
        return _grouped_case(label, given, torch, a, **kw)

    def heads(
        q: Any,
        k: Any,
        v: Any,
        ends: Any,
        total: Any,
        *,
        window: int = s,
        causal: int = 1,
        bias: Any = 0,
        **more: Any,
    ) -> Any:
        import torch

        j, i, last = torch.arange(s), torch.arange(s)[:, None], ends.reshape(-1, 1, 1, 1)
        seen = (j <= last) & (j > i - window) & ((j <= i) | (not causal))
        operands = (x if x.ndim == 4 else split(x, h) for x, h in ((q, n), (k, m), (v, m)))
        return rows(attend(*operands, bias=bias + hide(seen), **more))

    def smooth(*x: Any) -> Any:
        return heads(*x, sinks=x[0].new_zeros(1))

    yield case("plain", {}, heads)
    yield case("padded", {"ends": _ints(2, 1)}, heads)
    yield case("all", {}, lambda *x: heads(*x, causal=0), ", causal=0")
    yield case("window", {}, lambda *x: heads(*x, window=2), ", local_window_size=2")
    yield case("softcap", {}, lambda *x: heads(*x, softcap=0.5), ", softcap=0.5")
    yield case("scale", {}, lambda *x: heads(*x, scale=0.1), ", scale=0.1")
    yield case("sinks", {"sinks": floats(n)}, lambda *x: heads(*x[:-1], sinks=x[-1]))
    yield case("smooth", {}, smooth, ", smooth_softmax=1")
    for shape in ((2, n, s, s), (1, 1, s, s)):
        yield case(f"added {shape}", {"bias": floats(*shape)}, lambda *x: heads(*x[:-1], bias=x[-1]))

    def parted(x: Any, ends: Any, total: Any) -> Any:
        q, k, v = x.split([n * _SIZE, m * _SIZE, m * _SIZE], 2)
        return heads(q, k, v, ends, total)

    packed = {"q": floats(2, s, (n + 2 * m) * _SIZE), "ends": _ints(2, 2), "total": np.array(s, np.int32)}
    yield _grouped_case("packed", packed, parted)
    for paired in (0, 1):

        def turned(
            q: Any,
            k: Any,
            v: Any,
            ends: Any,
            total: Any,
            cos: Any,
            sin: Any,
            at: Any = None,
            paired: int = paired,
        ) -> Any:
            import torch

            places = torch.arange(s)[None] + (0 if at is None else at[0, 0])
            q, k = (turn(split(x, h), places, cos, sin, paired=paired) for x, h in ((q, n), (k, m)))
            return heads(q, k, v, ends, total)

        attributes, angles = f", do_rotary=1, rotary_interleaved={paired}", tables(12, _SIZE // 2)
        label, at = f"rotary interleaved={paired}", np.array([[2, 3, 4], [2, 3, 4]])
        yield case(f"{label} by operands", angles, turned, attributes, frozen=("cos", "sin"))
        yield case(f"{label} by all", angles, turned, attributes)
        yield case(f"{label} at places", {**angles, "at": at}, turned, attributes, frozen=("cos", "sin"))


def _grouped_past() -> Iterator[Case]:
    past = 4
    for label, batches, queries, ends in (
        ("one more", 2, 1, _ints(4, 4)),
        ("several more", 1, 3, _ints(6)),
        ("fewer in a batch", 2, 1, _ints(4, 2)),
    ):
        feeds = {
            **_rows(batches, queries),
            "pk": floats(batches, _FEW, past, _SIZE),
            "pv": floats(batches, _FEW, past, _SIZE),
            "ends": ends,
            "total": np.array(past + queries, np.int32),
        }
        # the present is undefined after a batch's own keys; without it, the kernel is wrong
        returned = 3 if len(set(ends)) == 1 else 1

        def attend_past(*x: Any, returned: int = returned, **more: Any) -> Any:
            return _with_past(*x, **more)[:returned]

        def turned(*x: Any, function: Any = attend_past) -> Any:
            return function(*x[:7], angles=x[7:])

        def added(*x: Any, function: Any = attend_past) -> Any:
            return function(*x[:7], bias=x[7])

        told: Any = {"outputs": 3, "returned": returned}
        yield _grouped_case(f"past, {label}", feeds, attend_past, **told)
        more, rotary = {**feeds, **tables(12, _SIZE // 2)}, ", do_rotary=1"
        yield _grouped_case(f"past, {label}, rotary", more, turned, rotary, frozen=("cos", "sin"), **told)
        more = {**feeds, "bias": floats(1, _MANY, queries, past + queries)}
        yield _grouped_case(f"past, {label}, added", more, added, **told)


def _with_past(
    q: Any, k: Any, v: Any, pk: Any, pv: Any, ends: Any, total: Any, *, angles: Any = (), bias: Any = None
) -> list[Any]:
    """Each batch separately, since caches may have different lengths."""
    import torch

    results = []
    for b in range(len(q)):
        old, queries = int(ends[b]) + 1 - q.shape[1], q.shape[1]
        mine = [split(x[b][None], heads) for x, heads in ((q, _MANY), (k, _FEW), (v, _FEW))]
        if angles:
            places = torch.arange(queries)[None] + old
            mine[:2] = [turn(x, places, *angles) for x in mine[:2]]
        keys, values = (torch.cat([x[b, :, :old][None], new], 2) for x, new in ((pk, mine[1]), (pv, mine[2])))
        added = hide(up_to(queries, keys.shape[2], old))
        if bias is not None:
            added = added + bias[..., : keys.shape[2]]
        parts = (rows(attend(mine[0], keys, values, bias=added)), keys, values)
        results.append([torch.nn.functional.pad(x, (0, 0, 0, int(total) - x.shape[2])) for x in parts[1:]])
        results[-1].insert(0, parts[0])
    return [torch.cat(parts) for parts in zip(*results, strict=True)]
