"""GELU in its forms: by the error function, by tanh, and by a sigmoid (SiLU with a factor).

The products and polynomials that exporters write differ in order and association only, so they
are read as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Refusal
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms

#: Relative error of constants that exporters round.
_CLOSE, _CLOSE_IN_HALVES = 1e-5, 2e-3
#: sqrt(2 / pi) (x + 0.044715 x^3), the polynomial in the GELU by tanh (Hendrycks and Gimpel, 2016).
_TANH = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}
_ERF = {1: math.sqrt(0.5)}
#: The opset that has a Gelu.
_SINCE = 20
_MEND = "if a GELU is meant, mend its constants"
#: By the function in the middle: what it is taken of, onnxruntime's operator, and the standard's attribute.
_FUNCTIONS = {"Erf": (_ERF, "Gelu", "none"), "Tanh": (_TANH, "FastGelu", "tanh")}


@dataclass(frozen=True)
class Product:
    """A number times values."""

    number: float
    values: tuple[ir.Value, ...]


def product_of(m: Match, root: ir.Node) -> Product:
    """What ``root`` multiplies, with the Muls that only it reads."""
    number, values = 1.0, []
    pending = [value for value in reversed(root.inputs) if value is not None]
    while pending:
        value = pending.pop()
        constant, node = ir.scalar_of(value), value.producer()
        if constant is not None:
            number *= float(constant)
        elif node is not None and _is(node, "Mul") and node.graph is root.graph and m.only_use(value):
            pending.extend(inner for inner in reversed(node.inputs) if inner is not None)
        else:
            values.append(value)
    return Product(number, tuple(values))


def polynomial_of(value: ir.Value, x: ir.Value, depth: int = 8) -> dict[int, float] | None:
    """``value`` as a polynomial of ``x``: coefficients by powers; ``None`` if it is no short one."""
    if value is x:
        return {1: 1.0}
    number = ir.scalar_of(value)
    if number is not None:
        return {0: float(number)}
    node = value.producer()
    if node is None or node.domain or depth == 0 or node.op_type not in ("Add", "Sub", "Mul", "Div", "Pow"):
        return None
    a, b = (None if side is None else polynomial_of(side, x, depth - 1) for side in node.inputs)
    if a is None or b is None:
        return None
    if node.op_type in ("Add", "Sub"):
        sign = 1.0 if node.op_type == "Add" else -1.0
        return {power: a.get(power, 0.0) + sign * b.get(power, 0.0) for power in sorted({*a, *b})}
    if node.op_type == "Mul":
        return _times(a, b)
    if list(b) != [0] or b[0] == 0:
        return None
    if node.op_type == "Div":
        return {power: factor / b[0] for power, factor in a.items()}
    result = {0: 1.0}
    if b[0] not in (2.0, 3.0):
        return None
    for _ in range(int(b[0])):
        result = _times(result, a)
    return result


def _times(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for p, f in a.items():
        for q, g in b.items():
            result[p + q] = result.get(p + q, 0.0) + f * g
    return result


def _is_close(found: dict[int, float] | None, wanted: dict[int, float], error: float) -> bool:
    powers = sorted({*(found or {}), *wanted})
    return found is not None and all(
        math.isclose(found.get(power, 0.0), wanted.get(power, 0.0), rel_tol=error) for power in powers
    )


def _written_out(polynomial: dict[int, float] | None) -> str:
    if polynomial is None:
        return "no polynomial of the other factor"
    powers = {0: "", 1: " x"}
    return " + ".join(
        f"{factor:.6g}{powers.get(power, f' x^{power}')}" for power, factor in sorted(polynomial.items())
    )


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and node.domain == ""


@rule(
    lambda op, a, b: op.Mul(a, b),
    numerics=Reassociates,
    fuses=True,
    pattern="GELU",
    anchors=("Erf", "Tanh"),
    tags=("onnxscript:erf-gelu", "onnxscript:gelu", "onnxruntime:GeluFusion", "onnxruntime:FastGeluFusion"),
)
def gelu(op: Builder, m: Match, a: ir.Value, b: ir.Value) -> Outcome:
    """x / 2 * (1 + erf(x / sqrt 2)) is a Gelu, and with a tanh that is close to the erf, a FastGelu."""
    found = product_of(m, m.root)
    error = _CLOSE if m.dtype(a) in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else _CLOSE_IN_HALVES
    if len(found.values) != 2:
        return m.no("it is not a product of two values")
    other = m.no("no factor is one plus an error function or tanh of the other")
    for x, sum_ in (found.values, found.values[::-1]):
        node = sum_.producer()
        if node is None or not _is(node, "Add") or not m.only_use(sum_):
            continue
        for function, one in (tuple(node.inputs), tuple(node.inputs)[::-1]):
            inner = None if function is None else function.producer()
            if function is None or inner is None or ir.scalar_of(one) != 1 or not m.only_use(function):
                continue
            if inner.domain or inner.op_type not in _FUNCTIONS:
                continue
            argument, (wanted, vendor, approximate) = inner.inputs[0], _FUNCTIONS[inner.op_type]
            assert argument is not None
            polynomial = polynomial_of(argument, x)
            if not _is_close(polynomial, wanted, error):
                is_not, should = _written_out(polynomial), _written_out(wanted)
                reason = f"{inner.op_type} is taken of {is_not}, in a GELU it is of {should}"
                other = m.no(reason, argument, hint=_MEND)
            elif not math.isclose(found.number, 0.5, rel_tol=error):
                reason = f"the product is taken {found.number:g} times, in a GELU 0.5 times"
                other = m.no(reason, function, hint=_MEND)
            else:
                return _written(op, m, x, vendor, approximate)
    return other


def _written(op: Builder, m: Match, x: ir.Value, vendor: str, approximate: str) -> ir.Value | Refusal:
    """The fused operator: the standard's from opset 20 on, else onnxruntime's own."""
    target, dtype = m.cx.target, m.dtype(x)
    if not forms.keeps_shape_of(m, x):
        return m.no(forms.WIDENED, x)
    if m.rank(x) == 0:
        return m.no("the kernel takes no single number", x)
    result = None
    if m.version >= _SINCE and target.has_kernel("Gelu", "", m.version, dtype):
        result = op.Gelu(x, approximate=None if approximate == "none" else approximate)
    elif not m.cx.options.portable and target.has_kernel(vendor, ir.MICROSOFT, 1, dtype):
        result = op.node(vendor, [x], domain=ir.MICROSOFT)
    if result is None and m.version < _SINCE and target.has_kernel("Gelu", "", _SINCE, dtype):
        return m.no(f"the opset is below {_SINCE}", x, hint=f"raise it: --target-opset {_SINCE}")
    if result is None:
        return m.no("the target has no kernel for it at this opset", x)
    assert isinstance(result, ir.Value)
    return result


@rule(
    lambda op, x, y: op.Mul(x, op.Sigmoid(y)),
    numerics=Reassociates,
    exclusive=True,
    fuses=True,
    anchors=("Sigmoid",),
    pattern="quick GELU, SiLU",
    tags=("onnxruntime:QuickGeluFusion",),
)
def quick_gelu(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """x * sigmoid(a x) is a QuickGelu; with a = 1 it is also called SiLU or Swish."""
    factor = polynomial_of(y, x)
    if factor is None or list(factor) != [1]:
        return m.no("the sigmoid is not of a multiple of the other factor", x)
    if m.cx.options.portable:
        return m.no("it is no operator of the ONNX standard", hint="leave out --portable")
    if not m.cx.target.has_kernel("QuickGelu", ir.MICROSOFT, 1, m.dtype(x)):
        return m.no("the target has no kernel for it", x)
    if not forms.keeps_shape_of(m, x):
        return m.no(forms.WIDENED, x)
    return op.node("QuickGelu", [x], {"alpha": factor[1]}, domain=ir.MICROSOFT)
