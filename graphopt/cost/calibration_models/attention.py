"""Attention of 8 heads of size 64, of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.cost.calibration_models.competing_models import (
    UNFUSED,
    CompetingModels,
    Subject,
    competing_models,
    random,
)
from graphopt.cost.cost_model import Axis

_HEADS, _SIZE, _GROUPS = 8, 64, 2
_HIDDEN = _HEADS * _SIZE
#: The limit of capped scores, as in Gemma 2.
_CAP = 50.0
_SPLIT = """
    qs = Reshape(q, heads) qh = Transpose<perm = [0, 2, 1, 3]>(qs)
    ks = Reshape(k, key_heads) kt = Transpose<perm = [0, 2, 3, 1]>(ks)
    vs = Reshape(v, key_heads) vh = Transpose<perm = [0, 2, 1, 3]>(vs)
"""
_JOIN = "joined = Transpose<perm = [0, 2, 1, 3]>(weighted) y = Reshape(joined, rows)"
_SHAPES: dict[str, Any] = {
    "heads": np.array([0, 0, _HEADS, _SIZE]),
    "key_heads": np.array([0, 0, _HEADS, _SIZE]),
    "rows": np.array([0, 0, _HIDDEN]),
    "scale": np.float32(_SIZE**-0.5),
}
_COUNTS = f"num_heads = {_HEADS}"


def _rows(length: int, key_heads: int = _HEADS) -> dict[str, np.ndarray]:
    """Queries, keys and values of all heads."""
    heads = {"q": _HEADS, "k": key_heads, "v": key_heads}
    return {name: random(seed, 1, length, count * _SIZE) for seed, (name, count) in enumerate(heads.items())}


def _causal_mask(length: int) -> np.ndarray:
    return np.triu(np.full((1, 1, length, length), -1e9, np.float32), 1)


def _key_counts(length: int) -> dict[str, np.ndarray]:
    """The inputs of GroupQueryAttention with the number of keys."""
    return {"last": np.array([length - 1], np.int32), "total": np.array(length, np.int32)}


def _attention(length: int) -> CompetingModels:
    return _self_attention(length)


def _masked_attention(length: int) -> CompetingModels:
    mask = np.zeros((1, 1, length, length), np.float32)
    mask[..., length - length // 4 :] = -1e9
    return _self_attention(length, "mask", bias="mask", mask=mask)


def _causal_attention(length: int) -> CompetingModels:
    """The mask is a constant of the unfused model, as in exported models."""
    grouped = f"""y:3 | y = com.microsoft.GroupQueryAttention<{_COUNTS}, kv_num_heads = {_HEADS}>(
        q, k, v, , , last, total)"""
    constants = _key_counts(length) | {"mask": _causal_mask(length)}
    return _self_attention(
        length, "mask", causal=", unidirectional = 1", grouped=grouped, constants=constants
    )


def _capped_attention(length: int) -> CompetingModels:
    """Causal attention whose scores are capped by Tanh, which MultiHeadAttention does not compute."""
    capped = f"softcap = {_CAP}"
    unfused = f"""y:3 | {_SPLIT} product = MatMul(qh, kt) scaled = Mul(product, scale)
        divided = Div(scaled, cap) bounded = Tanh(divided) capped = Mul(bounded, cap)
        score = Add(capped, mask)
        p = Softmax<axis = -1>(score) weighted = MatMul(p, vh) {_JOIN}"""
    texts = {
        UNFUSED: unfused,
        "Attention": f"""y:3 | y = Attention<q_num_heads = {_HEADS}, kv_num_heads = {_HEADS}, is_causal = 1,
            {capped}>(q, k, v)""",
        "GroupQueryAttention": f"""y:3 | y = com.microsoft.GroupQueryAttention<{_COUNTS},
            kv_num_heads = {_HEADS}, {capped}>(q, k, v, , , last, total)""",
    }
    constants = {"mask": _causal_mask(length), "cap": np.float32(_CAP), **_key_counts(length)}
    return competing_models(texts, _rows(length), {**_SHAPES, **constants})


def _self_attention(
    length: int,
    added: str = "",
    bias: str = "",
    causal: str = "",
    grouped: str | None = None,
    constants: Mapping[str, Any] | None = None,
    **feeds: np.ndarray,
) -> CompetingModels:
    """Attention over ``length`` of 3-D queries, keys and values."""
    score = "scaled = Mul(product, scale)"
    score += f" score = Add(scaled, {added})" if added else " score = Identity(scaled)"
    texts = {
        UNFUSED: f"""y:3 | {_SPLIT} product = MatMul(qh, kt) {score}
            p = Softmax<axis = -1>(score) weighted = MatMul(p, vh) {_JOIN}""",
        "MultiHeadAttention": f"""y:3 | y = com.microsoft.MultiHeadAttention<{_COUNTS}{causal}>(
            q, k, v{f", , , {bias}" if bias else ""})""",
        "Attention": f"""y:3 | y = Attention<q_num_heads = {_HEADS}, kv_num_heads = {_HEADS}{
            ", is_causal = 1" if causal else ""
        }>(q, k, v{f", {bias}" if bias else ""})""",
    }
    if grouped is not None:
        texts["GroupQueryAttention"] = grouped
    return competing_models(texts, _rows(length) | feeds, {**_SHAPES, **(constants or {})})


def _one_head(length: int) -> CompetingModels:
    """Attention with one head, without splitting into heads and merging."""
    texts = {
        UNFUSED: """y:3 | kt = Transpose<perm = [0, 2, 1]>(k) product = MatMul(q, kt)
            scaled = Mul(product, scale) p = Softmax<axis = -1>(scaled) y = MatMul(p, v)""",
        "MultiHeadAttention": "y:3 | y = com.microsoft.MultiHeadAttention<num_heads = 1>(q, k, v)",
        "Attention": "y:3 | y = Attention<q_num_heads = 1, kv_num_heads = 1>(q, k, v)",
    }
    feeds = {name: random(seed, 1, length, _SIZE) for seed, name in enumerate("qkv")}
    return competing_models(texts, feeds, {"scale": _SHAPES["scale"]})


def _grouped_attention(length: int) -> CompetingModels:
    """Causal attention with one key and value per four query heads, repeated in the unfused model."""
    repeat = " ".join(
        f"{x}u = Unsqueeze({x}n, two) {x}e = Expand({x}u, wide) {x}r = Reshape({x}e, all)" for x in "kv"
    )
    unfused = f"""y:3 |
        qs = Reshape(q, heads) qh = Transpose<perm = [0, 2, 1, 3]>(qs)
        ks = Reshape(k, key_heads) kn = Transpose<perm = [0, 2, 1, 3]>(ks)
        vs = Reshape(v, key_heads) vn = Transpose<perm = [0, 2, 1, 3]>(vs)
        {repeat} kt = Transpose<perm = [0, 1, 3, 2]>(kr)
        product = MatMul(qh, kt) scaled = Mul(product, scale) score = Add(scaled, mask)
        p = Softmax<axis = -1>(score) weighted = MatMul(p, vr) {_JOIN}"""
    texts = {
        UNFUSED: unfused,
        "Attention": f"""y:3 | y = Attention<q_num_heads = {_HEADS}, kv_num_heads = {_GROUPS}, is_causal = 1>(
            q, k, v)""",
        "GroupQueryAttention": f"""y:3 | y = com.microsoft.GroupQueryAttention<{_COUNTS},
            kv_num_heads = {_GROUPS}>(q, k, v, , , last, total)""",
    }
    constants = {
        **_SHAPES,
        "key_heads": np.array([0, 0, _GROUPS, _SIZE]),
        "two": np.array([2]),
        "wide": np.array([1, _GROUPS, _HEADS // _GROUPS, length, _SIZE]),
        "all": np.array([1, _HEADS, length, _SIZE]),
        "mask": _causal_mask(length),
        **_key_counts(length),
    }
    return competing_models(texts, _rows(length, _GROUPS), constants)


def _attention_to_past(length: int) -> CompetingModels:
    """A single query attends to ``length`` keys; all except the last are past keys."""
    unfused = f"""y:3 present_k:4 present_v:4 |
        qs = Reshape(q, heads) qh = Transpose<perm = [0, 2, 1, 3]>(qs)
        ks = Reshape(k, heads) kh = Transpose<perm = [0, 2, 1, 3]>(ks)
        vs = Reshape(v, heads) vh = Transpose<perm = [0, 2, 1, 3]>(vs)
        present_k = Concat<axis = 2>(past_k, kh) present_v = Concat<axis = 2>(past_v, vh)
        kt = Transpose<perm = [0, 1, 3, 2]>(present_k)
        product = MatMul(qh, kt) scaled = Mul(product, scale)
        p = Softmax<axis = -1>(scaled) weighted = MatMul(p, present_v) {_JOIN}"""
    texts = {
        UNFUSED: unfused,
        "MultiHeadAttention": f"""y:3 present_k:4 present_v:4 |
            y, present_k, present_v = com.microsoft.MultiHeadAttention<{_COUNTS}>(
                q, k, v, , , , past_k, past_v)""",
        "Attention": f"""y:3 present_k:4 present_v:4 |
            y, present_k, present_v = Attention<q_num_heads = {_HEADS}, kv_num_heads = {_HEADS}>(
                q, k, v, , past_k, past_v)""",
        "GroupQueryAttention": f"""y:3 present_k:4 present_v:4 |
            y, present_k, present_v = com.microsoft.GroupQueryAttention<{_COUNTS}, kv_num_heads = {_HEADS}>(
                q, k, v, past_k, past_v, last, total)""",
    }
    past = {name: random(seed, 1, _HEADS, length - 1, _SIZE) for seed, name in ((3, "past_k"), (4, "past_v"))}
    return competing_models(texts, _rows(1) | past, {**_SHAPES, **_key_counts(length)})


_LENGTH = Axis("length", (16, 64, 256, 1024), 256)
SUBJECTS = (
    Subject("attention", "", (_LENGTH,), _attention),
    Subject("attention", "mask", (_LENGTH,), _masked_attention),
    Subject("attention", "causal", (_LENGTH,), _causal_attention),
    Subject("attention", "grouped", (_LENGTH,), _grouped_attention),
    Subject("attention", "one head", (_LENGTH,), _one_head),
    Subject("attention", "capped", (_LENGTH,), _capped_attention),
    Subject("attention", "past", (_LENGTH,), _attention_to_past),
)
