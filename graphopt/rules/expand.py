"""Expands: redundant before operators that broadcast, in chains, or with computed shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import position_dependence
from graphopt.rules.building_blocks.operands import producer_of

_BROADCASTING = (*sorted(traits.BINARY_ELEMENTWISE - {"PRelu"}), *traits.VARIADIC_ELEMENTWISE)


@rule(
    lambda op, xs: op.one_of(*_BROADCASTING)(xs.rest()),
    numerics=Exact,
    proven_exact=True,
    producers=("Expand",),
    tags=("onnxscript:expand-before-binary-op",),
)
def expand_before_broadcast(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """f(Expand(x), y) → f(x, y), if f broadcasts x to the same shape."""
    if position_dependence.depends_on_position(m, m.root):
        return m.no(f"the bits of onnxruntime's {m.root.op_type} depend on shapes", m.root.outputs[0])
    return _without_expands(op, m, xs)


@rule(
    lambda op, xs: op.one_of(*position_dependence.sometimes_dependent(_BROADCASTING))(xs.rest()),
    numerics=Reassociates,
    producers=("Expand",),
)
def expand_before_selection(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """f(Expand(x), y) → f(x, y), if f, such as Where, Max or Pow, broadcasts x to the same shape.

    Not exact: the shapes decide whether onnxruntime (1.31) returns 0.0 for -0.0, and how it rounds a Pow.
    """
    if position_dependence.is_integer_power(m, m.root):
        return m.no("the overflow of an integer power depends on shapes", m.root.outputs[0])
    return _without_expands(op, m, xs)


def _without_expands(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """The root without the Expands of operands that it broadcasts itself."""
    result = m.shape(m.root.outputs[0])
    if result is None:
        return m.no("the rank of the result is unknown", m.root.outputs[0])
    operands = list(xs)
    for index, x in enumerate(xs):
        source = _operand_of_expand(m, x)
        if source is not None:
            tried = [*operands[:index], source, *operands[index + 1 :]]
            if _broadcast_exactly(m, tried, result):
                operands = tried
    if all(a is b for a, b in zip(operands, xs, strict=True)):
        return m.no("no Expand is redundant")
    return op.like(m.root, operands)


def _operand_of_expand(m: Match, x: ir.Value) -> ir.Value | None:
    """The operand of the Expand that computes ``x``."""
    node = producer_of(x, "Expand", graph=m.graph)
    return None if node is None else node.inputs[0]


def _broadcast_exactly(m: Match, operands: Sequence[ir.Value], result: Sequence[Dim]) -> bool:
    """Whether ``operands``, which broadcast to at most ``result``, broadcast to exactly that shape."""
    shapes = [m.shape(operand) for operand in operands]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or max(map(len, known)) < len(result):
        return False
    return all(
        dim == 1 or any(m.cx.facts.dim_equal(dim, shape[-offset]) for shape in known if offset <= len(shape))
        for offset, dim in zip(range(len(result), 0, -1), result, strict=True)
    )


@rule(lambda op, x, shape: op.Expand(x, shape), numerics=Exact, proven_exact=True)
def materialize_expand_shape(op: Builder, m: Match, x: ir.Value, shape: ir.Value) -> Outcome:
    """Expand(x, computed shape) → Expand(x, constant), if each dim is a number or a dim of x."""
    if ir.constant_of(shape) is not None:
        return m.no("the shape is constant already", shape)
    source, result = m.shape(x), m.shape(m.root.outputs[0])
    if source is None or result is None:
        return m.no("rank unknown", x)
    missing = len(result) - len(source)
    target = []
    for axis, dim in enumerate(result):
        stays = axis >= missing and m.cx.facts.dim_equal(dim, source[axis - missing])
        if not stays and not isinstance(dim, int):
            return m.no(f"dim {axis} is computed", shape)
        target.append(1 if stays else dim)
    return op.Expand(x, np.array(target, np.int64))


@rule(lambda op, x, a, b: op.Expand(op.Expand(x, a), b), numerics=Exact, proven_exact=True)
def collapse_expands(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """Expand(Expand(x, a), b) → Expand(x, b), if x or b determines every dim."""
    source, target, result = m.shape(x), m.cx.known_ints(b), m.shape(m.root.outputs[0])
    if source is None or target is None or result is None:
        return m.no("shapes unknown", x)
    if len(result) > max(len(source), len(target)):
        return m.no("only the first shape determines the rank", a)
    for offset, dim in zip(range(len(result), 0, -1), result, strict=True):
        own = (shape[-offset] for shape in (source, target) if offset <= len(shape))
        if dim != 1 and not any(m.cx.facts.dim_equal(dim, other) for other in own):
            return m.no(f"only the first shape determines dim {len(result) - offset}", a)
    return op.Expand(x, b)
