"""What a softmax is taken of in attention, however it is spelt: q @ k.T * scale, with biases and masks.

Sizes: B batches, N heads, S queries, T keys, D elements of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Refusal
from graphopt.numerics import Numerics
from graphopt.rewrite import Match
from graphopt.rules.support.attention.heads import parted, parted_keys
from graphopt.rules.support.constants import times_number
from graphopt.rules.support.operands import producer_of

#: What is below this takes every weight from what scores there are.
MINUS_INFINITY = -1e30
#: What is below this takes every weight that a trained network is known to give.
_FAR_BELOW = -9e3
#: Domains of products and what stands around them.
_KNOWN = ("", ir.MICROSOFT)
#: Operators that are looked through for the product of queries and keys.
_FAR = 8


@dataclass(frozen=True)
class Mask:
    """A choice between scores and a number so low that its weight vanishes beside any other.

    Attributes:
        condition: of a Where that broadcasts to [B, N, S, T].
        kept: the scores.
        low: the number, which stays the same whatever score is added to it, but not whatever mask.
        keeps: what ``condition`` is where scores are kept.
    """

    condition: ir.Value
    kept: ir.Value
    low: float
    keeps: bool


#: What is done to scores: a number for each is added, or some are masked.
Term = ir.Value | Mask


@dataclass(frozen=True)
class Scores:
    """What a softmax is taken of: ``q @ k.T * scale``, and more.

    Attributes:
        q, k: [B, N, S, D] and [B, N, D, T]; or, of heads that are batches, without N.
        k_turned: ``k`` is [B, N, D, T], not [B, N, T, D].
        terms: what is done to them, last first.
    """

    q: ir.Value
    k: ir.Value
    k_turned: bool = True
    scale: float = 1.0
    terms: tuple[Term, ...] = ()


def told_of(term: Term) -> ir.Value:
    """The tensor that ``term`` is: its numbers, or truths."""
    return term.condition if isinstance(term, Mask) else term


def scores_of(m: Match, value: ir.Value, *, parts: bool = False) -> Scores | Refusal:
    """Read ``value`` as attention scores, or say what stands in the way.

    Args:
        parts: batches and heads are merged in the products, and perhaps not elsewhere.
    """
    terms: list[Term] = []
    scale = 1.0
    while True:
        node = value.producer()
        fused = node is not None and _is_fused_product(m, node)
        if (
            node is None
            or (node.domain and not fused)
            or node.graph is not m.root.graph
            or not m.only_use(value)
        ):
            return m.no(
                "the scores are not a product of queries and keys, or have other readers",
                value,
                shared=True,
            )
        if node.op_type in ("MatMul", "FusedMatMul"):
            q, k = node.inputs
            assert q is not None and k is not None
            turned = not (fused and m.attribute(node, "transB"))
            alpha = float(m.attribute(node, "alpha")) if fused else 1.0
            (q, of_q), (k, of_k) = unscaled(m, q), unscaled(m, k)
            if parts:
                queries, keys = parted(m, q), parted_keys(m, k)
                if queries is None or keys is None:
                    return m.no("queries or keys are not merged batches and heads", q)
                q, (k, turned) = queries, keys if turned else (keys[0], not keys[1])
            return Scores(q, k, turned, scale * alpha * of_q * of_k, tuple(terms))
        if node.op_type in ("Mul", "Div") and (factor := times_number(node)) is not None:
            scale, value = scale * factor[1], factor[0]
        elif node.op_type in ("Add", "Where") and scale != 1.0:
            return m.no("the bias or mask is scaled with the scores", value)
        elif node.op_type == "Add":
            sides = [side for side in node.inputs if side is not None]
            inner = next((side for side in sides if _is_product(m, side)), None)
            if inner is None:
                return m.no("neither summand is a product of queries and keys", value)
            terms.append(sides[1] if inner is sides[0] else sides[0])
            value = inner
        elif node.op_type == "Where":
            mask = _mask_of(m, node)
            if mask is None:
                return m.no("masked scores do not vanish", value, hint=_how_to_mask(m, node))
            terms.append(mask)
            value = mask.kept
        elif parts and (source := parted(m, value)) is not None:
            value = source
        else:
            return m.no(f"{node.op_type} is not part of attention", value)


def _is_fused_product(m: Match, node: ir.Node) -> bool:
    """Whether ``node`` is a product that may scale, and transpose its second operand, but does no more."""
    if node.op_type != "FusedMatMul" or node.domain != ir.MICROSOFT:
        return False
    return not any(m.attribute(node, name) for name in ("transA", "transBatchA", "transBatchB"))


def _mask_of(m: Match, node: ir.Node) -> Mask | None:
    """What the Where ``node`` masks."""
    limit = _FAR_BELOW if m.cx.options.numerics is Numerics.APPROXIMATES else MINUS_INFINITY
    return next((mask for mask in _choices(node) if mask.low <= limit), None)


def _choices(node: ir.Node) -> Iterator[Mask]:
    """What the Where ``node`` masks, if that is what it is for."""
    condition, *choices = node.inputs
    for keeps, (kept, other) in ((True, choices), (False, choices[::-1])):
        low = ir.scalar_of(other)
        if low is not None and condition is not None and kept is not None:
            yield Mask(condition, kept, float(low), keeps)


def _how_to_mask(m: Match, node: ir.Node) -> str:
    near = any(MINUS_INFINITY < mask.low <= _FAR_BELOW for mask in _choices(node))
    return "mask with -inf, or a number near it" + ("; or take it for that: --fast-math" if near else "")


def _is_product(m: Match, value: ir.Value) -> bool:
    """Whether ``value`` is a MatMul, perhaps scaled, masked, or with more added to it."""
    pending: list[ir.Value | None] = [value]
    for _ in range(_FAR):
        node = None if not pending else producer_of(pending.pop(0), domains=_KNOWN)
        if node is None:
            continue
        if node.op_type == "MatMul" or _is_fused_product(m, node):
            return True
        if node.op_type in ("Mul", "Div") and (factor := times_number(node)) is not None:
            pending.append(factor[0])
        elif node.op_type == "Add":
            pending += node.inputs
        elif node.op_type == "Reshape":
            pending.append(node.inputs[0])
        elif node.op_type == "Where":
            pending += [mask.kept for mask in _choices(node)]
    return False


def unscaled(m: Match, value: ir.Value) -> tuple[ir.Value, float]:
    """``value`` without factors, which become part of the scale, also from before it was transposed."""
    node, scale = producer_of(value, domains=_KNOWN), 1.0
    while node is not None and node.op_type in ("Mul", "Div") and m.only_use(value):
        factor = times_number(node)
        if factor is None or m.rank(factor[0]) != m.rank(value):
            break
        value, scale = factor[0], scale * factor[1]
        node = producer_of(value, domains=_KNOWN)
    return value, scale
