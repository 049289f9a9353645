"""Pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.slices_and_pads import Padding, pad, pad_number, padding_of


@rule(lambda op, x, a, b: op.Pad(op.Pad(x, a.rest(), tag="inner"), b.rest()), numerics=Exact)
def collapse_pads(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Pad(Pad(x, a), b) → Pad(x, a + b), by one constant."""
    inner, outer = padding_of(m, m.node("inner")), padding_of(m, m.root)
    if inner is None or outer is None:
        return m.no("amounts unknown", x)
    if inner.mode != "constant" or outer.mode != "constant" or min(inner.amounts + outer.amounts) < 0:
        return m.no("it does not only add a constant")
    numbers = pad_number(inner), pad_number(outer)
    if None in numbers or np.array(numbers[0]).tobytes() != np.array(numbers[1]).tobytes():
        return m.no("the numbers differ, or are unknown")
    amounts = [one + other for one, other in zip(inner.amounts, outer.amounts, strict=True)]
    return pad(op, m, m.root, x, amounts)


def _padding(m: Match, x: ir.Value, number: float | bool | None, name: str) -> Padding:
    """The padding of the matched Pad of ``x``; refuses if it does not pad by ``number``."""
    padding = padding_of(m, m.node("pad"))
    if padding is None or number is None or pad_number(padding) != number:
        m.refuse(f"it does not pad by a known amount of {name}", x)
    return padding


@rule(
    lambda op, x, a, w, rest: op.Conv(op.Pad(x, a.rest(), tag="pad"), w, rest.rest()),
    numerics=Reassociates,
    tags=(
        "onnxslim:pad-conv",
        "onnxoptimizer:fuse_pad_into_conv",
        "onnxscript:fuse-pad-into-conv",
        "onnxruntime:PadFusion",
        "onnxscript:normalize-pad-format-conv",
    ),
)
def pad_into_conv(op: Builder, m: Match, x: ir.Value, w: ir.Value, rest: tuple[ir.Value, ...]) -> Outcome:
    """Conv(Pad(x, a), w) → Conv(x, w, pads=a), if Pad adds zeros on spatial axes."""
    return _into_spatial_pads(op, m, _padding(m, x, 0, "zeros"), [x, w, *rest])


@rule(
    lambda op, x, a, w, z, rest: op.ConvInteger(op.Pad(x, a.rest(), tag="pad"), w, z.optional(), rest.rest()),
    numerics=Exact,
    tags=("onnxscript:fuse-pad-into-conv-integer", "onnxscript:normalize-pad-format-conv-integer"),
)
def pad_into_conv_integer(
    op: Builder, m: Match, x: ir.Value, w: ir.Value, z: ir.Value | None, rest: tuple[ir.Value, ...]
) -> Outcome:
    """ConvInteger(Pad(x, a), w) → ConvInteger(x, w, pads=a), if Pad adds the zero point on spatial axes."""
    padding = _padding(m, x, 0 if z is None else ir.scalar_of(z), "the zero point")
    inputs = [x, w, z, *rest]
    return _into_spatial_pads(op, m, padding, inputs if z is not None or rest else inputs[:2])


@rule(
    lambda op, x, a, q, w, rest: op.Conv(
        op.DequantizeLinear(op.Pad(x, a.rest(), tag="pad"), q.rest(), tag="dequantize"), w, rest.rest()
    ),
    numerics=Reassociates,
    exclusive=True,
)
def pad_into_dequantized_conv(
    op: Builder, m: Match, x: ir.Value, q: Any, w: ir.Value, rest: tuple[ir.Value, ...]
) -> Outcome:
    """Conv(DequantizeLinear(Pad(x, a)), w) → Conv(DequantizeLinear(x), w, pads=a).

    Only for padding by the zero point on spatial axes.
    """
    dequantize = m.node("dequantize")
    padding = _padding(m, x, _zero_point(m, x, dequantize), "the zero point")
    return _into_spatial_pads(op, m, padding, [op.like(dequantize, [x, *q]), w, *rest])


@rule(
    lambda op, x, a, b, q, w, rest: op.Conv(
        op.DequantizeLinear(
            op.QuantizeLinear(op.Pad(x, a.rest(), tag="pad"), b.rest(), tag="quantize"),
            q.rest(),
            tag="dequantize",
        ),
        w,
        rest.rest(),
    ),
    numerics=Reassociates,
    exclusive=True,
)
def pad_into_quantized_conv(
    op: Builder, m: Match, x: ir.Value, b: Any, q: Any, w: ir.Value, rest: tuple[ir.Value, ...]
) -> Outcome:
    """Conv(DequantizeLinear(QuantizeLinear(Pad(x, a))), w) → the same without Pad, with pads=a.

    Only for padding by 0 on spatial axes.
    """
    quantize, dequantize = m.node("quantize"), m.node("dequantize")
    if _zero_point(m, x, quantize) != _zero_point(m, x, dequantize):
        return m.no("the zero points differ", x)
    padding = _padding(m, x, 0, "zeros")
    return _into_spatial_pads(
        op, m, padding, [op.like(dequantize, [op.like(quantize, [x, *b]), *q]), w, *rest]
    )


@rule(
    lambda op, x, a: op.AveragePool(op.Pad(x, a.rest(), tag="pad")),
    numerics=Reassociates,
    tags=("onnxoptimizer:fuse_pad_into_pool",),
)
def pad_into_average_pool(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """AveragePool(Pad(x, a)) → AveragePool(x, pads=a, count_include_pad=1), if Pad adds zeros."""
    padding = _padding(m, x, 0, "zeros")
    own = m.attribute(m.root, "pads")
    if own is not None and any(own) and m.attribute(m.root, "count_include_pad") != 1:
        return m.no("its own pads are excluded from the average")
    return _into_pool(op, m, padding, [x], count_include_pad=1)


@rule(
    lambda op, x, a: op.MaxPool(op.Pad(x, a.rest(), tag="pad"), outputs=1),
    numerics=Reassociates,
    tags=("onnxoptimizer:fuse_pad_into_pool",),
)
def pad_into_max_pool(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """MaxPool(Pad(x, a)) → MaxPool(x, pads=a), if Pad adds minus infinity; zeros may change sign."""
    return _into_pool(op, m, _padding(m, x, -np.inf, "minus infinity"), [x])


def _zero_point(m: Match, x: ir.Value, node: ir.Node) -> float:
    """The zero point of the quantizer ``node``; refuses if it is not one known number."""
    parameters = quantizers.parameters(m, node)
    if parameters is None or not quantizers.is_per_tensor(m, node):
        m.refuse("the scale and zero point are not known, or not of the whole tensor", x)
    return parameters[1].item()


def _into_pool(
    op: Builder, m: Match, padding: Padding, inputs: list[ir.Value | None], **changed: int
) -> Outcome:
    if m.attribute(m.root, "ceil_mode") or any(step != 1 for step in m.attribute(m.root, "dilations") or ()):
        return m.no("it has ceil_mode or dilations")
    shape = m.shape(inputs[0])
    if shape is None or not all(map(symbolic.known_nonzero, shape[2:])):
        return m.no("a spatial dim may be 0, which pools reject before padding", inputs[0])
    return _into_spatial_pads(op, m, padding, inputs, window=m.attribute(m.root, "kernel_shape"), **changed)


def _into_spatial_pads(
    op: Builder,
    m: Match,
    padding: Padding,
    inputs: list[ir.Value | None],
    window: tuple[int, ...] | None = None,
    **changed: int,
) -> Outcome:
    """The root applied to ``inputs``, with its own pads increased by ``padding``."""
    before, after = padding.before[2:], padding.after[2:]
    if padding.mode != "constant" or min(padding.amounts) < 0 or any(padding.before[:2] + padding.after[:2]):
        return m.no("it pads batch or channels, crops, or repeats the data", inputs[0])
    rank = len(before)
    own = _own_pads(m, rank)
    if own is None:
        return m.no("its own pads depend on the size of the input")
    pads = [one + other for one, other in zip(before + after, own, strict=True)]
    if window is not None and any(amount >= window[i % rank] for i, amount in enumerate(pads)):
        return m.no("onnxruntime requires pads smaller than the window")
    return op.like(m.root, inputs, pads=pads, auto_pad=None, **changed)


def _own_pads(m: Match, rank: int) -> Sequence[int] | None:
    """The padding of the root before and after each of ``rank`` spatial axes; ``None`` if unknown."""
    pads, mode = m.attribute(m.root, "pads"), m.attribute(m.root, "auto_pad")
    match mode:
        case "NOTSET":
            return pads or (0,) * (2 * rank)
        case "VALID":
            return (0,) * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER" if m.root.op_type in ("Conv", "ConvInteger"):
            totals = _same_pads(m, rank)
            if totals is None:
                return None
            less, more = [total // 2 for total in totals], [(total + 1) // 2 for total in totals]
            return less + more if mode == "SAME_UPPER" else more + less
    return None


def _same_pads(m: Match, rank: int) -> list[int] | None:
    """The padding of each spatial axis of a convolution with ``auto_pad`` (ONNX, Conv)."""
    x, w = (m.shape(value) for value in m.root.inputs[:2])
    window = m.attribute(m.root, "kernel_shape") or (w and w[2:])
    strides = m.attribute(m.root, "strides") or (1,) * rank
    dilations = m.attribute(m.root, "dilations") or (1,) * rank
    if x is None or not window:
        return None
    totals = []
    for size, kernel, stride, dilation in zip(x[2:], window, strides, dilations, strict=True):
        if stride == 1:
            size = 1  # the padding is the same for every size
        if not isinstance(size, int) or not isinstance(kernel, int):
            return None
        steps = (size - 1) // stride  # the number of steps after the first window
        totals.append(max(0, steps * stride + (kernel - 1) * dilation + 1 - size))
    return totals
