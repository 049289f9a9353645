"""Attention that is not fused to an operator: MatMul, scale, mask, Softmax and MatMul.

The fusions of attention exclude it if operands may broadcast, for example because the lengths of keys and
values have different symbols. The kernel is that of :mod:`graphopt.fusion.templates.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.analysis.symbolic import typical_size
from graphopt.context import Context, Dim
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates.attention import KEY, QUERY, SINES, AttentionParameters
from graphopt.fusion.unknown_sizes import require_equal, require_static_size

#: Number of queries up to which the kernel takes at most 0.94 times the time of products and a loop nest.
_FEW_QUERIES = 16
#: First opset whose Softmax has one axis.
_SOFTMAX_OF_ONE_AXIS = 13


def is_faster(match: Match, cx: Context) -> bool:
    """Whether the kernel is faster, by measured times relative to products and a loop nest (docs/kernels.md).

    Heads that Expand repeats are left to loop nests, which read the operand of Expand.
    """
    query, key = match.operands[QUERY], match.operands[KEY]
    assert query is not None and key is not None
    reshape = _producer(key, "Reshape")
    if _producer(key if reshape is None else reshape.inputs[0], "Expand") is not None:
        return False
    return (typical_size((cx.shape(query) or ())[2]) or 1) <= _FEW_QUERIES


@template("MatMul", is_faster=is_faster)
def unfused_attention(anchor: ir.Node, cx: Context) -> Match:
    """MatMul(Softmax(scale · Q · Kᵀ + mask), V) of tensors by heads; weights of NaN may become 0."""
    nodes = [anchor]
    weights, value = anchor.inputs
    softmax, is_guarded = _softmax(weights, nodes)
    axis = softmax.attributes.get("axis")
    if axis is not None and axis.as_int() not in (-1, 3):
        raise CantFuse("its weights are not a softmax over keys")
    if cx.version(softmax) < _SOFTMAX_OF_ONE_AXIS:
        raise CantFuse("its softmax is over several axes")
    nodes.append(softmax)
    scores, mask = _masked(softmax.inputs[0], nodes)
    scores, scale = _scaled(scores, nodes)
    product = _producer(scores, "MatMul")
    if product is None:
        raise CantFuse("its weights are not those of attention")
    nodes.append(product)
    query, factor = _scaled(product.inputs[0], nodes)
    key, transposed_factor = _scaled(product.inputs[1], nodes)
    transpose = _producer(key, "Transpose")
    perm = None if transpose is None else transpose.attributes.get("perm")
    if transpose is None or perm is None or list(perm.as_ints()) != [0, 1, 3, 2]:
        raise CantFuse("its keys are not transposed")
    nodes.append(transpose)
    key, other_factor = _scaled(transpose.inputs[0], nodes)
    operands = [query, key, value, mask]
    if cx.rank(anchor.outputs[0]) != 4:
        raise CantFuse("its operands are not by heads")
    batch, heads = _checked(operands, cx)
    axes = () if mask is None else _mask_axes(mask, (batch, heads, *_lengths(operands, cx)), cx)
    parameters = AttentionParameters(
        heads,
        heads,
        (True,) * 4,
        axes,
        scale * factor * transposed_factor * other_factor,
        is_guarded=is_guarded,
    )
    padded = (*operands, *(None,) * (SINES + 1 - len(operands)))
    return Match("attention", tuple(reversed(nodes)), padded, (anchor.outputs[0],), parameters)


def _producer(value: ir.Value | None, op: str) -> ir.Node | None:
    """The node that computes ``value``, if it is a standard ``op``."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", op) else None


def _softmax(weights: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Node, bool]:
    """The Softmax of ``weights``, and whether Where(IsNaN(weights), 0, weights) follows; appends these."""
    guard = _producer(weights, "Where")
    if guard is not None:
        condition, zero, weights = guard.inputs
        is_nan = _producer(condition, "IsNaN")
        if is_nan is None or is_nan.inputs[0] is not weights or ir.scalar_of(zero) != 0:
            raise CantFuse("its weights are not those of attention")
        nodes += [guard, is_nan]
    softmax = _producer(weights, "Softmax")
    if softmax is None:
        raise CantFuse("its weights are not a softmax")
    return softmax, guard is not None


def _masked(scores: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value | None, ir.Value | None]:
    """The scores before an Add, and its other operand, a mask; appends the node."""
    add = _producer(scores, "Add")
    if add is None:
        return scores, None
    nodes.append(add)
    first, second = add.inputs
    is_first = _producer(_scaled(first, [])[0], "MatMul") is not None
    return (first, second) if is_first else (second, first)


def _scaled(value: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value | None, float]:
    """``value`` before a product or a quotient with a number, and its factor; appends the node."""
    for op in ("Mul", "Div"):
        node = _producer(value, op)
        if node is None:
            continue
        for place, other in ((1, 0), (0, 1)):
            number = ir.scalar_of(node.inputs[place])
            if number is None or (op == "Div" and (place == 0 or number == 0)):
                continue
            if len(list(ir.readers(node.outputs[0]))) > 1 or node.outputs[0].is_graph_output():
                continue
            nodes.append(node)
            return node.inputs[other], float(number) if op == "Mul" else 1 / float(number)
    return value, 1.0


def _checked(operands: Sequence[ir.Value | None], cx: Context) -> tuple[Dim, int]:
    """The batch and the number of heads of all operands; raises CantFuse if they may differ."""
    for value in operands:
        if value is not None and cx.dtype(value) is not ir.DataType.FLOAT:
            raise CantFuse("no kernels for attention of other types than float")
    query, *others = operands[:3]
    shapes = [None if value is None else cx.shape(value) for value in (query, *others)]
    if query is None or any(shape is None or len(shape) != 4 for shape in shapes):
        raise CantFuse("its operands are not by heads")
    heads, depth = (require_static_size(query, axis, cx) for axis in (1, 3))
    q, k, v = (shape or () for shape in shapes)
    for one, other in zip((*q[:2], *q[:2], depth), (*k[:2], *v[:2], k[3]), strict=True):
        require_equal(one, other, cx, "the batches or heads of its operands differ")
    if heads < 1:
        raise CantFuse("it has no heads")
    return q[0], heads


def _lengths(operands: Sequence[ir.Value | None], cx: Context) -> tuple[Dim, Dim]:
    """The numbers of queries and keys."""
    query, key = operands[:2]
    assert query is not None and key is not None
    return (cx.shape(query) or ())[2], (cx.shape(key) or ())[2]


def _mask_axes(mask: ir.Value, sizes: tuple[Dim, ...], cx: Context) -> tuple[int | None, ...]:
    """For each axis of the scores, that of ``mask``; ``None`` if it is broadcast."""
    shape = cx.shape(mask)
    if shape is None or len(shape) > len(sizes):
        raise CantFuse("the rank of its mask is not supported")
    skipped = len(sizes) - len(shape)
    axes: list[int | None] = [None] * skipped
    for axis, dim in enumerate(shape):
        if dim != 1:
            require_equal(dim, sizes[skipped + axis], cx, "the sizes of its mask and of its scores differ")
        axes.append(None if dim == 1 else axis)
    return tuple(axes)
