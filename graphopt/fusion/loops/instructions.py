"""The instructions of the loop IR: cost, reference semantics, and C expression of each.

A new instruction is one entry of the table. All operands of an instruction have one type, except for the
first operand of ``select``, a bool. The result also has this type, except for predicates (bool) and ``cast``.

``min`` and ``max`` propagate NaN. ``div`` and ``mod`` of integers round towards zero like in C; divisors
are neither 0 nor -1. ``round_even`` is Round of ONNX. ``cast`` follows C: the result is unspecified for NaN
and numbers out of range, but the cast does not trap; the result of a cast to bool is ``x != 0``. ``round``
rounds a float to the precision of another type. Integers wrap around. Shifts by counts out of range return 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt.util.lazy_dataclass import dataclass

#: Cost of an instruction that compiles to dozens of machine instructions, relative to an addition.
COSTLY = 8


@dataclass(frozen=True)
class Op:
    """An instruction.

    Attributes:
        numpy: its value, from arrays; ``None`` for instructions with further operands, and reductions.
        c: C expression of floats, as a format string: ``{0}``, ``{1}`` … are the operands, ``{end}`` is the
            suffix of vector functions, and ``{type}`` and ``{mask}`` are the vector types of the operands and
            of their masks.
        ints: the same for integers; by default ``c``.
        bools: the same for masks, whose elements are -1 or 0.
        cost: time per element, in additions.
        precise: whether floats are evaluated in double precision and rounded once.
        predicate: whether the result is a bool.
    """

    name: str
    numpy: Callable[..., Any] | None = None
    c: str | None = None
    ints: str | None = None
    bools: str | None = None
    cost: int = 1
    precise: bool = False
    predicate: bool = False


def _divide(x: Any, y: Any) -> Any:
    if x.dtype.kind == "f":
        return x / y
    return np.trunc(x.astype(np.longdouble) / y.astype(np.longdouble)).astype(x.dtype)


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    def shift(x: Any, count: Any) -> Any:
        inside = (count >= 0) & (count < x.dtype.itemsize * 8)
        return np.where(inside, function(x, np.where(inside, count, 0).astype(x.dtype)), 0).astype(x.dtype)

    return shift


def _sigmoid(x: Any) -> Any:
    return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))


def _function(name: str, numpy: Callable[..., Any], arity: int = 1, **options: Any) -> Op:
    """An instruction of floats, implemented by the function ``name`` of the headers."""
    operands = ", ".join(f"{{{index}}}" for index in range(arity))
    return Op(name, numpy, f"{name}{{end}}({operands})", **options)


def _rounding(name: str, numpy: Callable[..., Any]) -> Op:
    return _function(name, lambda x: numpy(x) if x.dtype.kind == "f" else x, ints="{0}")


_ERF = np.vectorize(math.erf, otypes=[np.float64])
_TYPED, _TYPED_2 = "_{type}{end}({0})", "_{type}{end}({0}, {1})"

_TABLE = [
    Op("load"),
    Op("constant"),
    Op("extent"),
    Op("cast"),
    Op("round"),
    Op("select", np.where),
    Op("add", np.add, "({0} + {1})", bools="({0} | {1})"),
    Op("sub", np.subtract, "({0} - {1})"),
    Op("mul", np.multiply, "({0} * {1})", bools="({0} & {1})"),
    Op("div", _divide, "({0} / {1})", ints="div" + _TYPED_2),
    Op("mod", lambda x, y: x - y * _divide(x, y), ints="mod" + _TYPED_2),
    Op("min", np.minimum, "min" + _TYPED_2, bools="({0} & {1})"),
    Op("max", np.maximum, "max" + _TYPED_2, bools="({0} | {1})"),
    Op("neg", np.negative, "(-{0})"),
    Op("abs", np.abs, "abs" + _TYPED),
    _function("fmod", np.fmod, 2, cost=COSTLY),
    _function("pow", np.power, 2, ints="pow" + _TYPED_2, cost=COSTLY, precise=True),
    _function("sqrt", np.sqrt, precise=True),
    _function("exp", np.exp, cost=COSTLY, precise=True),
    _function("log", np.log, cost=COSTLY, precise=True),
    _function("tanh", np.tanh, cost=COSTLY, precise=True),
    _function("sigmoid", _sigmoid, cost=COSTLY, precise=True),
    _function("erf", _ERF, cost=COSTLY, precise=True),
    _function("sin", np.sin, cost=COSTLY, precise=True),
    _function("cos", np.cos, cost=COSTLY, precise=True),
    _rounding("floor", np.floor),
    _rounding("ceil", np.ceil),
    _rounding("round_even", np.rint),
    _rounding("trunc", np.trunc),
    Op("lt", np.less, "({mask}{end})({0} < {1})", bools="(~{0} & {1})", predicate=True),
    Op("le", np.less_equal, "({mask}{end})({0} <= {1})", bools="(~{0} | {1})", predicate=True),
    Op("eq", np.equal, "({mask}{end})({0} == {1})", bools="(~({0} ^ {1}))", predicate=True),
    Op("isnan", np.isnan, "({0} != {0})", predicate=True),
    Op("isinf", np.isinf, "(abs_f32{end}({0}) == __builtin_inff())", predicate=True),
    Op("and", np.bitwise_and, "({0} & {1})", bools="({0} & {1})"),
    Op("or", np.bitwise_or, "({0} | {1})", bools="({0} | {1})"),
    Op("xor", np.bitwise_xor, "({0} ^ {1})", bools="({0} ^ {1})"),
    Op("not", np.invert, "(~{0})", bools="(~{0})"),
    Op("shl", _shift(np.left_shift), ints="shl" + _TYPED_2),
    Op("shr", _shift(np.right_shift), ints="shr" + _TYPED_2),
    Op("reduce_sum"),
    Op("reduce_prod"),
    Op("reduce_max"),
    Op("reduce_min"),
]

#: All instructions, by name.
OPS: dict[str, Op] = {op.name: op for op in _TABLE}
