"""Constraints that operators place on the sizes of their inputs: a table by operator.

These constraints go beyond shape inference: the columns of a matrix equal the rows of the next, the input of
a recurrence has as many features as its weights, an index is below the size of the indexed axis. onnxruntime
refuses to run a node whose constraints are violated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from graphopt import ir
from graphopt.analysis.shape_inference.rules import shape_rules
from graphopt.analysis.shape_inference.rules.elementwise_binary import elementwise, where
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.shape_inference.value_facts import ShapeTuple
from graphopt.analysis.symbolic import Dim, floordiv, product
from graphopt.inputs.integer_range_analysis import ValueBounds
from graphopt.inputs.size_constraint import Site, SizeConstraint, SizeConstraints, broadcast, equal, least

_Rule: TypeAlias = Callable[[Site], SizeConstraints]


def size_constraints(node: ir.Node, facts: ShapeFacts, bounds: ValueBounds) -> list[SizeConstraint]:
    """The constraints on the sizes of the inputs of ``node``; none if the node violates its specification."""
    rule = _RULES.get(node.op_type) if node.domain in ir.RUNTIME_DOMAINS else None
    if rule is None and shape_rules().get((node.domain, node.op_type)) in (elementwise, where):
        rule = _elementwise
    if rule is None:
        return []
    site = Site(node, facts, bounds)
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return []  # an attribute of the enclosing function, which depends on the call
    try:
        return [*rule(site)]
    except (IndexError, KeyError, TypeError, ValueError, ArithmeticError):
        return []


# Broadcasting ---------------------------------------------------------------------------------


def _broadcast_shapes(shapes: Sequence[ShapeTuple]) -> Iterator[SizeConstraint]:
    """All dims at the same position, counted from the end, broadcast together."""
    for place in range(1, max(map(len, shapes), default=0) + 1):
        dims = dict.fromkeys(shape[-place] for shape in shapes if len(shape) >= place)
        yield from (broadcast(a, b) for a, b in pairwise(dim for dim in dims if dim != 1))


def _elementwise(site: Site) -> SizeConstraints:
    return _broadcast_shapes(site.shapes())


def _expand(site: Site) -> SizeConstraints:
    target = site.ints(1)
    return [] if target is None else _broadcast_shapes([site.shape(0), tuple(target)])


# Products and convolutions --------------------------------------------------------------------


def _product(a: ShapeTuple, b: ShapeTuple) -> Iterator[SizeConstraint]:
    yield equal(a[-1], b[-2] if len(b) > 1 else b[0])
    yield from _broadcast_shapes([a[:-2], b[:-2]])


def _matmul(a: int, b: int) -> _Rule:
    return lambda site: _product(site.shape(a), site.shape(b))


def _fused_matmul(site: Site) -> SizeConstraints:
    if site.attribute("transBatchA", 0) or site.attribute("transBatchB", 0):
        return []
    a, b = site.shape(0), site.shape(1)
    if site.attribute("transA", 0) and len(a) > 1:
        a = (*a[:-2], a[-1], a[-2])
    if site.attribute("transB", 0) and len(b) > 1:
        b = (*b[:-2], b[-1], b[-2])
    return _product(a, b)


def _gemm(site: Site) -> Iterator[SizeConstraint]:
    rows, inner = site.shape(0)[:: -1 if site.attribute("transA", 0) else 1]
    inner_b, columns = site.shape(1)[:: -1 if site.attribute("transB", 0) else 1]
    yield equal(inner, inner_b)
    if site.has(2):
        yield from _broadcast_shapes([(rows, columns), site.shape(2)])


def _packed_matmul(site: Site) -> Iterator[SizeConstraint]:
    yield equal(site.shape(0)[-1], site.attribute("K"))


def _conv(x: int, w: int, bias: int) -> _Rule:
    def rule(site: Site) -> Iterator[SizeConstraint]:
        shape, weights = site.shape(x), site.shape(w)
        last = site.attribute("channels_last", 0)
        yield equal(shape[-1 if last else 1], weights[1] * site.attribute("group", 1))
        if site.has(bias):
            yield equal(site.shape(bias)[0], weights[0])
        yield from _windows_fit(site)

    return rule


def _nhwc_conv(site: Site) -> Iterator[SizeConstraint]:
    """X is [N, *spatial dims, C], W is [M, *kernel, C / groups]."""
    weights = site.shape(1)
    yield equal(site.shape(0)[-1], weights[-1] * site.attribute("group", 1))
    if site.has(2):
        yield equal(site.shape(2)[0], weights[0])
    yield from (least(dim, 1) for dim in site.result()[1:-1])


def _conv_transpose(site: Site) -> Iterator[SizeConstraint]:
    yield equal(site.shape(0)[1], site.shape(1)[0])
    yield from _windows_fit(site)


def _windows_fit(site: Site) -> SizeConstraints:
    spatial = slice(1, -1) if site.attribute("channels_last", 0) else slice(2, None)
    return [least(dim, 1) for dim in site.result()[spatial]]


def _einsum(site: Site) -> Iterator[SizeConstraint]:
    terms = site.attribute("equation", "").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, list[Dim]] = {}
    for index, term in enumerate(terms):
        shape = site.shape(index)
        before, _, after = term.partition("...")
        for letter, size in [*zip(before, shape, strict=False), *zip(after[::-1], shape[::-1], strict=False)]:
            sizes.setdefault(letter, []).append(size)
    for found in sizes.values():
        yield from (broadcast(a, b) for a, b in pairwise(found))


# Recurrences and attention --------------------------------------------------------------------


def _recurrence(site: Site) -> Iterator[SizeConstraint]:
    """W is [directions, gates * hidden, features], R is [directions, gates * hidden, hidden]."""
    x, w, r = site.shape(0), site.shape(1), site.shape(2)
    batch_first = site.attribute("layout", 0)
    batch = x[0 if batch_first else 1]
    yield equal(x[2], w[2])
    yield equal(w[1], r[1])
    if site.has(4):
        yield equal(site.shape(4)[0], batch)
    for state in (5, 6):
        if site.has(state):
            expected = (batch, w[0], r[2]) if batch_first else (w[0], batch, r[2])
            yield from map(equal, site.shape(state), expected)


def _attention(site: Site) -> Iterator[SizeConstraint]:
    """Attention of ai.onnx, with heads on a separate axis (rank 4), or merged into the last axis (rank 3)."""
    q, k, v = site.shape(0), site.shape(1), site.shape(2)
    yield from (equal(other[0], q[0]) for other in (k, v))
    yield equal(k[-2], v[-2])
    if len(q) == 4:
        yield from (equal(q[3], k[3]), equal(k[1], v[1]))
    total: Dim = k[-2]
    if site.has(4) and site.has(5):
        past_k, past_v = site.shape(4), site.shape(5)
        total = total + past_k[2]
        yield from (equal(past_k[0], q[0]), equal(past_v[0], q[0]), equal(past_k[2], past_v[2]))
        if len(q) == 4:
            yield from (equal(past_k[1], k[1]), equal(past_k[3], k[3]), equal(past_v[3], v[3]))
    if site.has(3):
        mask = site.shape(3)
        yield from _broadcast_shapes([mask[:-1], (q[0], 1, q[-2])])
        yield equal(mask[-1], total)


def _multi_head_attention(site: Site) -> Iterator[SizeConstraint]:
    """MultiHeadAttention and GroupQueryAttention of onnxruntime, with separate query, key and value."""
    grouped = site.node.op_type == "GroupQueryAttention"
    query = site.shape(0)
    past = 3 if grouped else 6
    for index in (1, 2):
        if site.has(index):
            other = site.shape(index)
            yield equal(other[0], query[0])
            if grouped:
                yield equal(other[1], query[1])
    if not grouped and site.has(1) and site.has(2) and len(site.shape(1)) == len(site.shape(2)) == 3:
        yield from (equal(site.shape(1)[1], site.shape(2)[1]), equal(query[2], site.shape(1)[2]))
    if site.has(past) and site.has(past + 1):
        past_k, past_v = site.shape(past), site.shape(past + 1)
        yield from (equal(past_k[0], query[0]), equal(past_v[0], query[0]), equal(past_k[2], past_v[2]))
    if grouped and site.has(5):
        yield equal(product(site.shape(5)), query[0])


def _packed_attention(site: Site) -> Iterator[SizeConstraint]:
    """Attention of onnxruntime, with one weight matrix for query, key and value."""
    yield equal(site.shape(0)[2], site.shape(1)[0])
    if site.has(4):
        yield equal(site.shape(4)[1], site.shape(0)[0])


def _either_attention(site: Site) -> SizeConstraints:
    return _packed_attention(site) if site.node.domain == ir.MICROSOFT else _attention(site)


# Normalization and quantization ---------------------------------------------------------------


def _channels(*inputs: int) -> _Rule:
    """Vectors with one element per channel, the second axis of input 0."""

    def rule(site: Site) -> SizeConstraints:
        channels = site.shape(0)[1]
        return [equal(channels, site.shape(index)[0]) for index in inputs if site.has(index)]

    return rule


def _scaled(*inputs: int) -> _Rule:
    """Tensors that broadcast to the last axes of input 0."""
    return lambda site: [
        constraint
        for index in inputs
        if site.has(index)
        for constraint in _broadcast_shapes([site.shape(0), site.shape(index)])
    ]


def _quantized(site: Site) -> Iterator[SizeConstraint]:
    scale = site.shape(1)
    if len(scale) == 1 and scale[0] != 1:
        yield equal(site.shape(0)[site.attribute("axis", 1)], scale[0])


# Moving elements ------------------------------------------------------------------------------


def _concat(site: Site) -> Iterator[SizeConstraint]:
    shapes = site.shapes()
    axis = site.attribute("axis", 1) % max(len(shapes[0]), 1)
    for place in range(len(shapes[0])):
        if place != axis:
            yield from (equal(a[place], b[place]) for a, b in pairwise(shapes))


def _reshape(site: Site) -> Iterator[SizeConstraint]:
    yield equal(product(site.shape(0)), product(site.result()))


def _split(site: Site) -> Iterator[SizeConstraint]:
    size = site.shape(0)[site.attribute("axis", 0)]
    sizes = site.ints(1) if site.has(1) else site.attribute("split")
    if sizes is not None:
        yield equal(size, sum(sizes, start=0))
    elif site.attribute("num_outputs") is None:
        parts = len(site.node.outputs)
        yield equal(floordiv(size, parts) * parts, size)


def _squeeze(site: Site) -> SizeConstraints:
    axes = site.ints(1) if site.has(1) else site.attribute("axes", ())
    shape = site.shape(0)
    return [equal(shape[axis], 1) for axis in axes or () if isinstance(axis, int)]


def _blocks(site: Site) -> Iterator[SizeConstraint]:
    size = site.attribute("blocksize")
    shape = site.shape(0)
    inverse = site.node.op_type == "SpaceToDepth"
    step = size if inverse else size * size
    yield from (equal(floordiv(dim, step) * step, dim) for dim in (shape[2:] if inverse else shape[1:2]))


def _square(site: Site) -> SizeConstraints:
    return [equal(*site.shape(0)[-2:])]


def _reverse_sequence(site: Site) -> SizeConstraints:
    return [equal(site.shape(1)[0], site.shape(0)[site.attribute("batch_axis", 1)])]


def _scan(site: Site) -> Iterator[SizeConstraint]:
    """All scanned inputs have the same length."""
    count = site.attribute("num_scan_inputs")
    first = len(site.node.inputs) - count
    axes = site.attribute("scan_input_axes") or [0] * count
    lengths = [site.shape(first + place)[axis] for place, axis in enumerate(axes)]
    yield from (equal(a, b) for a, b in pairwise(lengths))


# Indices --------------------------------------------------------------------------------------


def _gather(site: Site) -> Iterator[SizeConstraint]:
    most = site.bounds.most(site.value(1))
    if most is not None:
        yield least(site.shape(0)[site.attribute("axis", 0)], most + 1)


def _elements(site: Site) -> Iterator[SizeConstraint]:
    """The indices have the rank of the data, and are larger at most along ``axis``."""
    yield from _gather(site)
    data, indices = site.shape(0), site.shape(1)
    axis = site.attribute("axis", 0) % len(data)
    yield from (least(a, b) for place, (a, b) in enumerate(zip(data, indices, strict=True)) if place != axis)
    if site.has(2):
        yield from map(equal, indices, site.shape(2))


def _tuples(site: Site) -> Iterator[SizeConstraint]:
    """Index tuples for the first axes after the batch dims."""
    data, indices = site.shape(0), site.shape(1)
    batch = site.attribute("batch_dims", 0)
    count = indices[-1]
    yield from map(equal, data[:batch], indices[:batch])
    if not isinstance(count, int):
        return
    for size, most in zip(data[batch:], site.bounds.parts(site.value(1), count), strict=False):
        if most is not None:
            yield least(size, most + 1)
    if site.node.op_type == "ScatterND":
        yield from map(equal, site.shape(2), (*indices[:-1], *data[count:]))


def _top_k(site: Site) -> Iterator[SizeConstraint]:
    k = site.ints(1) if site.has(1) else (site.attribute("k"),)
    if k is not None:
        yield least(site.shape(0)[site.attribute("axis", -1)], k[0])


# Classical models -----------------------------------------------------------------------------


def _features(site: Site) -> Iterator[SizeConstraint]:
    """At least as many columns as coefficients, or as features used by trees."""
    shape = site.shape(0)
    match site.node.op_type:
        case "Scaler":
            count = len(site.attribute("offset", ()))
            yield from (equal(shape[-1], count) for _ in range(count > 1))
        case "LinearRegressor":
            yield equal(shape[-1], len(site.attribute("coefficients")) // site.attribute("targets", 1))
        case "LinearClassifier":
            rows = len(site.attribute("intercepts", ())) or len(site.attribute("classlabels_ints", ()))
            rows = rows or len(site.attribute("classlabels_strings", ()))
            yield equal(shape[-1], len(site.attribute("coefficients")) // rows)
        case _:
            yield least(shape[-1], 1 + max(site.attribute("nodes_featureids")))


#: Rules by operator.
_RULES: dict[str, _Rule] = {
    operator: rule
    for operators, rule in {
        "Expand": _expand,
        "MatMul MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul": _matmul(0, 1),
        "QLinearMatMul": _matmul(0, 3),
        "FusedMatMul": _fused_matmul,
        "MatMulNBits": _packed_matmul,
        "Gemm FusedGemm": _gemm,
        "Conv FusedConv": _conv(0, 1, 2),
        "NhwcConv": _nhwc_conv,
        "ConvInteger": _conv(0, 1, 4),
        "QLinearConv": _conv(0, 3, 8),
        "ConvTranspose": _conv_transpose,
        "MaxPool AveragePool LpPool": _windows_fit,
        "Einsum": _einsum,
        "LSTM GRU RNN": _recurrence,
        "Attention": _either_attention,
        "MultiHeadAttention GroupQueryAttention": _multi_head_attention,
        "BatchNormalization": _channels(1, 2, 3, 4),
        "InstanceNormalization": _channels(1, 2),
        "LayerNormalization": _scaled(1, 2),
        "SimplifiedLayerNormalization RMSNormalization BiasGelu FastGelu PRelu": _scaled(1),
        "SkipLayerNormalization": _scaled(1, 2, 3, 4),
        "SkipSimplifiedLayerNormalization": _scaled(1, 2, 3),
        "QuantizeLinear DequantizeLinear": _quantized,
        "Concat": _concat,
        "Reshape": _reshape,
        "Split": _split,
        "Squeeze": _squeeze,
        "DepthToSpace SpaceToDepth": _blocks,
        "Det Inverse": _square,
        "ReverseSequence": _reverse_sequence,
        "Scan": _scan,
        "Gather": _gather,
        "GatherElements ScatterElements": _elements,
        "GatherND ScatterND": _tuples,
        "TopK": _top_k,
        "Scaler LinearRegressor LinearClassifier TreeEnsembleClassifier TreeEnsembleRegressor": _features,
    }.items()
    for operator in operators.split()
}
