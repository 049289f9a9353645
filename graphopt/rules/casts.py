"""Cast and CastLike."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.ops.exact_conversions import FLOATS, INTEGERS, holds
from graphopt.rewrite import Builder, Exact, Match, Outcome, ort_cast_before_product, rule

_T = ir.DataType


def _composes(first: ir.DataType, middle: ir.DataType, last: ir.DataType) -> bool:
    """Whether casting ``first`` directly to ``last`` returns the same bits as casting via ``middle``."""
    known = (*INTEGERS, *FLOATS, _T.BOOL)
    if any(dtype not in known for dtype in (first, middle, last)):
        return False
    if first in INTEGERS and middle in INTEGERS and last in INTEGERS and INTEGERS[middle] >= INTEGERS[last]:
        return True  # only the low bits count
    if not holds(middle, first):
        return False
    if last in INTEGERS and middle in FLOATS and first != _T.BOOL:
        # the conversion of a float that is out of range depends on the machine
        return holds(last, first) if first in INTEGERS else last in (_T.INT32, _T.INT64)
    return True


@rule(
    lambda op, x, to: op.Cast(x, to=to),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:cast-noop",
        "onnxoptimizer:eliminate_nop_cast",
        "onnxscript:no-op-cast",
        "onnxruntime:CastElimination",
        "onnxscript:fold-cast",
    ),
)
def drop_cast(op: Builder, m: Match, x: ir.Value, to: int) -> Outcome:
    """Cast(x, to=T) → x, if x is of type T."""
    return x if m.dtype(x) == to else m.no("the type changes, or is unknown", x)


@rule(
    lambda op, x, to, middle: op.Cast(op.Cast(x, to=middle), to=to),
    numerics=Exact,
    tags=("onnxscript:cast-cast",),
)
def collapse_casts(op: Builder, m: Match, x: ir.Value, to: int, middle: int) -> Outcome:
    """Cast(Cast(x, to=A), to=B) → Cast(x, to=B), if A represents every value of x, or only low bits count."""
    first = m.dtype(x)
    if first is None:
        return m.no("the type is unknown", x)
    between, last = ir.dtype_of_number(middle), ir.dtype_of_number(to)
    if between is None or last is None:
        return m.no("unknown element type")
    if not _composes(first, between, last):
        return m.no("the first Cast may lose digits", x)
    return x if first == to else op.Cast(x, to=to)


@rule(
    lambda op, x, target: op.CastLike(x, target),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxscript:fold-cast-like",),
)
def cast_like_to_cast(op: Builder, m: Match, x: ir.Value, target: ir.Value) -> Outcome:
    """CastLike(x, y) → Cast(x, to=T), for y of known type T."""
    to = m.dtype(target)
    if to is None:
        return m.no("the type is unknown", target)
    return x if m.dtype(x) == to else op.node("Cast", [x], {**m.root.attributes, "to": to})


@rule(
    lambda op, shape, to: op.Cast(op.ConstantOfShape(shape, tag="fill"), to=to),
    numerics=Exact,
    exclusive=True,
    tags=("onnxscript:cast-constant-of-shape",),
)
def cast_of_constant_of_shape(op: Builder, m: Match, shape: ir.Value, to: int) -> Outcome:
    """Cast(ConstantOfShape(s, c), to=T) → ConstantOfShape(s, T(c))."""
    dtype = ir.dtype_of_number(to)
    makes = (*INTEGERS, _T.FLOAT16, _T.FLOAT, _T.DOUBLE, _T.BOOL)
    if dtype is None or (dtype not in makes and not (dtype == _T.BFLOAT16 and m.version >= 20)):
        return m.no("ConstantOfShape does not support this type")
    value = m.attribute(m.node("fill"), "value")
    number = np.zeros(1, np.float32) if value is None else value.numpy().reshape(1)
    if dtype in INTEGERS and number.dtype.kind not in "biu":
        limits, whole = np.iinfo(dtype.numpy()), np.trunc(float(number[0]))
        if not limits.min <= whole <= limits.max:
            return m.no("the number does not fit into the type")
    cast = number.astype(dtype.numpy())
    if number.dtype == np.float64 and dtype == _T.FLOAT16:
        # onnxruntime converts via float, and rounds twice
        with np.errstate(over="ignore"):
            twice = number.astype(np.float32).astype(np.float16)
        if twice.tobytes() != cast.tobytes():
            return m.no("onnxruntime rounds the number twice, by way of float")
    return op.ConstantOfShape(shape, value=cast)


@rule(lambda op, x, c: op.Cast(op.Transpose(x, tag="transpose"), c.rest(), tag="cast"), numerics=Exact)
def cast_before_transpose(op: Builder, m: Match, x: ir.Value, c: Any) -> Outcome:
    """Cast(Transpose(x)) → Transpose(Cast(x)), if onnxruntime would crash at a MatMul of the result."""
    transpose = m.node("transpose")
    if not ort_cast_before_product.crashes(m.cx, m.root, transpose):
        return m.no("onnxruntime loads it", x)
    return op.like(transpose, [op.like(m.root, [x])])
