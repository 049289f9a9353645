"""Attention scores in any form, q @ k.T * scale, with the biases and masks on them.

Sizes: B batches, N heads, S queries, T keys, D elements of a head.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.attention.heads import unmerged, unmerged_keys
from graphopt.rules.building_blocks.computed_constants import times_number
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.util.lazy_dataclass import dataclass

#: Mask constants up to this leave no weight to masked scores, for scores of any usual magnitude.
MINUS_INFINITY = -1e30
#: Mask constants up to this leave no weight to masked scores in trained networks (--fast-math only).
_VANISHING = -9e3
#: Types whose softmax may be computed in float.
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: Domains of the operators in scores.
_DOMAINS = ("", ir.MICROSOFT)
#: Maximum number of nodes visited in the search for the product of queries and keys.
_MAX_NODES = 8


@dataclass(frozen=True)
class Mask:
    """A Where that replaces scores by a number so low that its softmax weight vanishes.

    Attributes:
        condition: the condition of the Where; broadcasts to [B, N, S, T].
        kept: the scores.
        low: the mask constant, unchanged by adding any score, but not by adding another mask.
        keeps: the value of ``condition`` where scores are kept.
    """

    condition: ir.Value
    kept: ir.Value
    low: float
    keeps: bool


#: A term of the scores: a bias, or a mask.
Term = ir.Value | Mask


@dataclass(frozen=True)
class Scores:
    """The argument of the softmax: ``q @ k.T * scale``, and further terms.

    Attributes:
        q, k: [B, N, S, D] and [B, N, D, T]; without N if batches and heads are merged.
        k_transposed: whether ``k`` is [B, N, D, T], not [B, N, T, D].
        terms: biases and masks, last first.
        widened: whether the product is converted from half precision to float before the terms are added.
        softcap: the number c of ``c * tanh(scores / c)``, computed before the terms are added; 0 for none.
    """

    q: ir.Value
    k: ir.Value
    k_transposed: bool = True
    scale: float = 1.0
    terms: tuple[Term, ...] = ()
    widened: bool = False
    softcap: float = 0.0


def tensor_of(term: Term) -> ir.Value:
    """The tensor of ``term``: a bias or the condition of a mask."""
    return term.condition if isinstance(term, Mask) else term


def scores_of(m: Match, value: ir.Value, *, parts: bool) -> Scores:
    """Analyze ``value`` as attention scores; the refusal names the operator that does not fit.

    Args:
        parts: whether batches and heads are merged in the products; they may be separate elsewhere.
    """
    terms: list[Term] = []
    scale, widened, softcap = 1.0, False, 0.0
    while True:
        node = value.producer()
        fused = node is not None and _is_fused_product(m, node)
        if (
            node is None
            or (node.domain and not fused)
            or node.graph is not m.root.graph
            or not m.only_use(value)
        ):
            m.refuse(
                "the scores are not a product of queries and keys, or have other readers", value, shared=True
            )
        if node.op_type in ("MatMul", "FusedMatMul"):
            q, k = node.inputs
            assert q is not None and k is not None
            transposed = not (fused and m.attribute(node, "transB"))
            alpha = float(m.attribute(node, "alpha")) if fused else 1.0
            (q, of_q), (k, of_k) = unscaled(m, q), unscaled(m, k)
            if parts:
                queries, keys = unmerged(m, q), unmerged_keys(m, k)
                if queries is None or keys is None:
                    m.refuse("queries or keys are not merged batches and heads", q)
                q, (k, transposed) = queries, keys if transposed else (keys[0], not keys[1])
            scale *= alpha * of_q * of_k * (softcap or 1.0)
            return Scores(q, k, transposed, scale, tuple(terms), widened, softcap)
        if node.op_type in ("Mul", "Div") and (factor := times_number(node)) is not None:
            scale, value = scale * factor[1], factor[0]
        elif _widens(m, node) and not parts:
            widened, value = True, node.inputs[0]  # type: ignore[assignment]
        elif node.op_type in ("Add", "Where") and widened:
            m.refuse("a bias or mask is narrower than the softmax", value)
        elif node.op_type in ("Add", "Where") and softcap:
            m.refuse("a bias or mask precedes the Tanh that caps the scores", value)
        elif node.op_type in ("Add", "Where") and scale != 1.0:
            m.refuse("the bias or mask is scaled with the scores", value)
        elif node.op_type == "Add":
            sides = [side for side in node.inputs if side is not None]
            inner = next((side for side in sides if _is_product(m, side)), None)
            if inner is None:
                m.refuse("neither summand is a product of queries and keys", value)
            terms.append(sides[1] if inner is sides[0] else sides[0])
            value = inner
        elif node.op_type == "Where":
            mask = _mask_of(m, node)
            if mask is None:
                m.refuse("masked scores do not vanish", value, hint=_mask_hint(node))
            terms.append(mask)
            value = mask.kept
        elif parts and (source := unmerged(m, value)) is not None:
            value = source
        elif node.op_type == "Tanh" and not softcap and scale > 0:
            softcap, scale, value = scale, 1.0, node.inputs[0]  # type: ignore[assignment]
        else:
            m.refuse(f"{node.op_type} is not part of attention", value)


def _is_fused_product(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` is a FusedMatMul that at most scales and transposes its second operand."""
    if node.op_type != "FusedMatMul" or node.domain != ir.MICROSOFT:
        return False
    return not any(m.attribute(node, name) for name in ("transA", "transBatchA", "transBatchB"))


def _widens(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` converts half precision to float."""
    return (
        node.op_type == "Cast"
        and m.dtype(node.outputs[0]) == ir.DataType.FLOAT
        and m.dtype(node.inputs[0]) in HALVES
    )


def _mask_of(m: Match, node: ir.Node) -> Mask | None:
    """The Where ``node`` as a mask; ``None`` if its constant is not low enough."""
    limit = _VANISHING if m.cx.options.numerics is Numerics.APPROXIMATES else MINUS_INFINITY
    return next((mask for mask in _mask_candidates(node) if mask.low <= limit), None)


def _mask_candidates(node: ir.Node) -> Iterator[Mask]:
    """The interpretations of the Where ``node`` as a mask."""
    condition, *choices = node.inputs
    for keeps, (kept, other) in ((True, choices), (False, choices[::-1])):
        low = ir.scalar_of(other)
        if low is not None and condition is not None and kept is not None:
            yield Mask(condition, kept, float(low), keeps)


def _mask_hint(node: ir.Node) -> str:
    near = any(MINUS_INFINITY < mask.low <= _VANISHING for mask in _mask_candidates(node))
    return "mask with -inf or a number near it" + (", or use --fast-math" if near else "")


def _is_product(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is a MatMul, perhaps scaled, masked or with summands."""
    pending: list[ir.Value | None] = [value]
    for _ in range(_MAX_NODES):
        node = None if not pending else producer_of(pending.pop(0), domains=_DOMAINS)
        if node is None:
            continue
        if node.op_type == "MatMul" or _is_fused_product(m, node):
            return True
        if node.op_type in ("Mul", "Div") and (factor := times_number(node)) is not None:
            pending.append(factor[0])
        elif node.op_type == "Add":
            pending += node.inputs
        elif node.op_type in ("Reshape", "Tanh") or _widens(m, node):
            pending.append(node.inputs[0])
        elif node.op_type == "Where":
            pending += [mask.kept for mask in _mask_candidates(node)]
    return False


def unscaled(m: Match, value: ir.Value) -> tuple[ir.Value, float]:
    """``value`` without scalar factors, and their product."""
    node, scale = producer_of(value, domains=_DOMAINS), 1.0
    while node is not None and node.op_type in ("Mul", "Div") and m.only_use(value):
        factor = times_number(node)
        if factor is None or m.rank(factor[0]) != m.rank(value):
            break
        value, scale = factor[0], scale * factor[1]
        node = producer_of(value, domains=_DOMAINS)
    return value, scale
