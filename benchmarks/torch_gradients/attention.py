"""The standard's Attention and RotaryEmbedding."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_RANDOM = np.random.default_rng(0)
_TYPES = {"float32": "float", "int32": "int32", "int64": "int64", "bool": "bool"}


def cases() -> Iterator[Case]:
    """By heads and by rows, masks of all kinds, a past; and rotations."""
    yield from _plain()
    yield from _masked()
    yield from _of_a_past()
    yield from _rotary()


def make_case(
    label: str,
    call: str,
    feeds: dict[str, np.ndarray],
    torch: Callable[..., Any],
    *,
    outputs: int = 1,
    returned: int | None = None,
    opset: int = 23,
    frozen: tuple[str, ...] = (),
    known: Container[str] = (),
) -> Case:
    """A case of one node, which returns all its outputs, or the first ``returned``.

    The dims of its inputs are open, but for the last ones of ``known``.
    """
    inputs = []
    for name, value in feeds.items():
        dims = [f"{name}_{axis}" for axis in range(value.ndim)]
        if name in known:
            dims[-1] = str(value.shape[-1])
        inputs.append(f"{_TYPES[value.dtype.name]}{'[' + ','.join(dims) + ']' if dims else ''} {name}")
    results = ["y", "present", "present_values"][:outputs]
    declared = ", ".join(f"float {name}" for name in results[:returned])
    text = f"m ({', '.join(inputs)}) => ({declared}) {{ {', '.join(results)} = {call} }}"
    return Case(label, text, feeds, torch, opset=opset, domains=', "com.microsoft" : 1', frozen=frozen)


def floats(*shape: int) -> np.ndarray:
    """Random numbers."""
    return _RANDOM.standard_normal(shape).astype(np.float32)


def tables(places: int, width: int) -> dict[str, np.ndarray]:
    """Cosines and sines of random angles."""
    angles = _RANDOM.uniform(0, 3, (places, width)).astype(np.float32)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


# In torch: B batches, N heads of queries, S queries, T keys, D numbers in a head ---------------


def split(x: Any, heads: int) -> Any:
    """[B, S, N * D] as [B, N, S, D]."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def rows(x: Any) -> Any:
    """[B, N, S, D] as [B, S, N * D]."""
    return x.transpose(1, 2).flatten(2)


def attend(
    q: Any, k: Any, v: Any, *, bias: Any = 0.0, scale: Any = None, softcap: float = 0, sinks: Any = None
) -> Any:
    """Attention by heads. A query without visible keys yields 0."""
    import torch

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], 3)
    hidden = scores == -torch.inf
    weights = torch.softmax(scores.masked_fill(hidden.all(3, keepdim=True), 0.0), 3)
    return weights.masked_fill(hidden, 0.0)[..., : k.shape[2]] @ v


def hide(seen: Any, low: float = -float("inf")) -> Any:
    """The term that hides keys when it is added to scores."""
    import torch

    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, low)


def up_to(queries: int, keys: int, offset: int = 0) -> Any:
    """The keys visible to each query in causal attention."""
    import torch

    return torch.ones(queries, keys, dtype=torch.bool).tril(offset)


def with_past(q: Any, k: Any, v: Any, pk: Any, pv: Any, *, causal: int) -> tuple[Any, Any, Any]:
    """Rows, keys and values of attention by heads with keys and values of the past."""
    import torch

    k, v = torch.cat([pk, k], 2), torch.cat([pv, v], 2)
    bias = hide(up_to(q.shape[2], k.shape[2], pk.shape[2])) if causal else 0.0
    return rows(attend(q, k, v, bias=bias)), k, v


def turn(x: Any, places: Any, cos: Any, sin: Any, *, paired: int = 0) -> Any:
    """[B, N, S, D], turned by the angles of ``places`` [B, S]."""
    import torch

    c, s = cos[places][:, None], sin[places][:, None]
    turned, rest = x[..., : 2 * c.shape[3]], x[..., 2 * c.shape[3] :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if paired else turned.chunk(2, 3)
    parts = [a * c - b * s, b * c + a * s]
    return torch.cat([torch.stack(parts, 4).flatten(3) if paired else torch.cat(parts, 3), rest], 3)


# Cases ----------------------------------------------------------------------------------------


def _feeds(
    n: int = 2, m: int = 2, s: int = 3, t: int = 5, d: int = 4, e: int = 4, *, by_rows: bool = False
) -> dict[str, np.ndarray]:
    """n heads of s queries, m of t keys and values, of d and e numbers."""
    if by_rows:
        return {"q": floats(2, s, n * d), "k": floats(2, t, m * d), "v": floats(2, t, m * e)}
    return {"q": floats(2, n, s, d), "k": floats(2, m, t, d), "v": floats(2, m, t, e)}


def _plain() -> Iterator[Case]:
    from torch.nn import functional

    by_torch: Any = functional.scaled_dot_product_attention
    yield make_case("Attention", "Attention(q, k, v)", _feeds(), by_torch)
    yield make_case("Attention values of another size", "Attention(q, k, v)", _feeds(e=6), by_torch)
    scaled = "Attention<scale=0.3>(q, k, v)"
    yield make_case("Attention scale", scaled, _feeds(), lambda *x: by_torch(*x, scale=0.3))
    causal = "Attention<is_causal=1>(q, k, v)"
    yield make_case("Attention causal", causal, _feeds(s=5), lambda *x: by_torch(*x, is_causal=True))
    for s, t in ((3, 5), (5, 3), (1, 4)):

        def attend_causal(q: Any, k: Any, v: Any, s: int = s, t: int = t) -> Any:
            return attend(q, k, v, bias=hide(up_to(s, t)))

        yield make_case(f"Attention causal {s} x {t}", causal, _feeds(s=s, t=t), attend_causal)
    for n, m in ((3, 3), (4, 2), (4, 1)):

        def attend_rows(q: Any, k: Any, v: Any, n: int = n, m: int = m) -> Any:
            return rows(by_torch(split(q, n), split(k, m), split(v, m), enable_gqa=True))

        call = f"Attention<q_num_heads={n}, kv_num_heads={m}>(q, k, v)"
        yield make_case(f"Attention rows {n} for {m}", call, _feeds(n, m, e=6, by_rows=True), attend_rows)


def _masked() -> Iterator[Case]:
    from torch.nn.functional import scaled_dot_product_attention as by_torch

    call = "Attention(q, k, v, m)"
    for shape in ((3, 5), (2, 1, 3, 5), (2, 2, 3, 5), (1, 2, 3, 5)):
        mask = floats(*shape)
        some = (mask > -0.5) | (np.arange(5) == 1)
        yield make_case(f"Attention mask {shape}", call, {**_feeds(), "m": mask}, by_torch)
        yield make_case(f"Attention condition {shape}", call, {**_feeds(), "m": some}, by_torch)
    none = np.ones((3, 5), bool)
    none[1] = False
    low = np.where(none, floats(3, 5), -np.inf).astype(np.float32)

    def attend_masked(q: Any, k: Any, v: Any, m: Any) -> Any:
        return attend(q, k, v, bias=m if m.is_floating_point() else hide(m))

    for kind, value in (("condition", none), ("mask", low)):
        given = {**_feeds(), "m": value}
        yield make_case(f"Attention {kind} that hides all", call, given, attend_masked, frozen=("m",))
    for attributes, causal, more in (
        ("softcap=0.7", 0, {"softcap": 0.7}),
        ("softcap=2.0, is_causal=1, scale=1.5", 1, {"softcap": 2.0, "scale": 1.5}),
    ):

        def attend_capped(q: Any, k: Any, v: Any, m: Any, causal: int = causal, more: Any = more) -> Any:
            return attend(q, k, v, bias=m + (hide(up_to(3, 5)) if causal else 0), **more)

        feeds = {**_feeds(), "m": floats(3, 5)}
        yield make_case(
            f"Attention {attributes}", f"Attention<{attributes}>(q, k, v, m)", feeds, attend_capped
        )


def _of_a_past() -> Iterator[Case]:
    for causal in (0, 1):

        def attend_past(q: Any, k: Any, v: Any, pk: Any, pv: Any, causal: int = causal) -> Any:
            return with_past(split(q, 4), split(k, 2), split(v, 2), pk, pv, causal=causal)

        past = {"pk": floats(2, 2, 2, 4), "pv": floats(2, 2, 2, 4)}
        call = f"Attention<q_num_heads=4, kv_num_heads=2, is_causal={causal}>(q, k, v, , pk, pv)"
        feeds = {**_feeds(4, 2, t=3, by_rows=True), **past}
        yield make_case(f"Attention past causal={causal}", call, feeds, attend_past, outputs=3)

        def attend_counted(q: Any, k: Any, v: Any, n: Any, causal: int = causal) -> Any:
            import torch

            places, counts = torch.arange(5), n.reshape(-1, 1, 1, 1)
            seen = places < counts
            if causal:
                seen = seen & (places <= torch.arange(3)[:, None] + counts - 3)
            return attend(q, k, v, bias=hide(seen))

        call, feeds = f"Attention<is_causal={causal}>(q, k, v, , , , n)", {**_feeds(), "n": np.array([4, 2])}
        yield make_case(f"Attention counts of keys causal={causal}", call, feeds, attend_counted, opset=24)


def _rotary() -> Iterator[Case]:
    n, size, s = 2, 8, 3
    for width, paired, by_rows, at in (
        (4, 0, False, [[0, 1, 2], [4, 2, 3]]),
        (4, 1, True, [[0, 1, 2], [4, 2, 3]]),
        (2, 0, True, [[0, 1, 2], [4, 2, 3]]),
        (2, 1, False, [[0, 1, 2], [4, 2, 3]]),
        (4, 0, True, [2]),
    ):
        places = np.array(at)

        def turn_all(
            x: Any, at: Any, cos: Any, sin: Any, by_rows: bool = by_rows, paired: int = paired
        ) -> Any:
            import torch

            at = at if at.ndim == 2 else at + torch.arange(s)[None]
            y = turn(split(x, n) if by_rows else x, at, cos, sin, paired=paired)
            return rows(y) if by_rows else y

        x = floats(2, s, n * size) if by_rows else floats(2, n, s, size)
        feeds = {"x": x, "at": places, **tables(8, width)}
        partial = f", num_heads={n}, rotary_embedding_dim={2 * width}" if 2 * width < size else ""
        partial = f", num_heads={n}" if by_rows and not partial else partial
        label = (
            f"{'rows' if by_rows else 'heads'} interleaved={paired} {2 * width} of {size} at {places.shape}"
        )
        for frozen in ((), ("cos", "sin")):
            told = f"{label} {'by x' if frozen else 'by all'}"
            call = f"RotaryEmbedding<interleaved={paired}{partial}>"
            if places.ndim == 2:
                standard = f"{call}(x, cos, sin, at)"
                yield make_case(f"RotaryEmbedding {told}", standard, feeds, turn_all, frozen=frozen)
            own, known = f"com.microsoft.{call}(x, at, cos, sin)", ("x", "cos", "sin")
            yield make_case(f"own RotaryEmbedding {told}", own, feeds, turn_all, frozen=frozen, known=known)
