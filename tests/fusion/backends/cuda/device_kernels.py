"""Kernels for tests of device code, beside the typical ones of all back ends."""

from __future__ import annotations

from graphopt.fusion.loops.ir import (
    ONE,
    ZERO,
    Access,
    Axis,
    Element,
    Instruction,
    Kernel,
    Port,
    Segment,
    Size,
    Store,
    Symbol,
)
from tests.fusion.backends.pattern_kernels import F32, SOFTMAX, M, N, load, step

SYMBOLS = (Symbol(0, 0), Symbol(0, 1))


def reduction(name: str, body: list[Instruction], columns: Size, whole: bool) -> Kernel:
    """A reduction of the rows of an N × ``columns`` matrix.

    Args:
        whole: whether the last instruction is stored for each element, or else for each row.
    """
    port = Port(F32, (N, columns))
    out = port if whole else Port(F32, (N,))
    access = Access(0, (columns, ONE) if whole else (ONE, ZERO))
    symbols = SYMBOLS[: 1 if columns.constant else 2]
    axes = (Axis(N), Axis(columns, True))
    segment = Segment(tuple(body), (Store(access, len(body) - 1),))
    return Kernel(name, (port,), (out,), symbols, axes, (segment,))


def row_sum(name: str, columns: Size) -> Kernel:
    """The sum of the exponentials of a row."""
    return reduction(name, [load(0, columns), step("exp", 0), step("reduce_sum", 1)], columns, False)


def softmax(name: str, columns: Size) -> Kernel:
    """A softmax of the rows."""
    body = [load(0, columns), *SOFTMAX.segments[0].body[1:]]
    return reduction(name, body, columns, True)


def layer_norm(name: str, columns: Size) -> Kernel:
    """A normalization of the rows by mean and variance, in two passes."""
    count = Instruction("constant", F32, value=float(columns.constant or 1))
    body = [
        load(0, columns),
        count,
        step("reduce_sum", 0),
        step("div", 2, 1),
        step("sub", 0, 3),
        step("mul", 4, 4),
    ]
    body += [
        step("reduce_sum", 5),
        step("div", 6, 1),
        Instruction("constant", F32, value=1e-5),
        step("add", 7, 8),
    ]
    return reduction(name, [*body, step("sqrt", 9), step("div", 4, 10)], columns, True)


def column_sums(name: str, rows: Size, columns: Size) -> Kernel:
    """The maxima of the columns of a matrix, and the sums of the exponentials."""
    port = Port(F32, (rows, columns))
    symbols = tuple(symbol for symbol, size in zip(SYMBOLS, (rows, columns), strict=True) if size.symbols)
    body = (load(0, columns), step("exp", 0), step("reduce_sum", 1), step("reduce_max", 0))
    stores = tuple(Store(Access(index, (ZERO, ONE)), index + 2) for index in range(2))
    out = Port(F32, (columns,))
    return Kernel(
        name, (port,), (out, out), symbols, (Axis(rows, True), Axis(columns)), (Segment(body, stores),)
    )


def transposed(name: str, element: Element) -> Kernel:
    """x[i, j] + y[j, i] of matrices of a type."""
    body = (
        Instruction("load", element.computed, access=Access(0, (M, ONE))),
        Instruction("load", element.computed, access=Access(1, (ONE, N))),
        step("xor" if element is Element.BOOL else "add", 0, 1, element=element.computed),
    )
    segment = Segment(body, (Store(Access(0, (M, ONE)), 2),))
    ports = (Port(element, (N, M)), Port(element, (M, N)))
    return Kernel(name, ports, ports[:1], SYMBOLS, (Axis(N), Axis(M)), (segment,), in_place=((0, 0),))


def sum_of_transposed(name: str, count: int) -> Kernel:
    """The sum of transposed matrices of int64."""
    body = [Instruction("load", Element.I64, access=Access(port, (ONE, N))) for port in range(count)]
    for port in range(1, count):
        body.append(step("add", len(body) - 1 if port > 1 else 0, port, element=Element.I64))
    segment = Segment(tuple(body), (Store(Access(0, (M, ONE)), len(body) - 1),))
    port = Port(Element.I64, (M, N))
    symbols = (Symbol(0, 1), Symbol(0, 0))
    return Kernel(
        name, (port,) * count, (Port(Element.I64, (N, M)),), symbols, (Axis(N), Axis(M)), (segment,)
    )


def powers(name: str, count: int) -> Kernel:
    """The sums over the rows of powers of the magnitudes of elements, for each column."""
    port, out = Port(F32, (N, M)), Port(F32, (M,))
    body = [load(0), step("abs", 0)]
    body += [step("mul", 1, 1 + index) for index in range(count)]
    sums = [step("reduce_sum", 2 + index) for index in range(count)]
    stores = tuple(Store(Access(index, (ZERO, ONE)), len(body) + index) for index in range(count))
    segment = Segment((*body, *sums), stores)
    return Kernel(name, (port,), (out,) * count, SYMBOLS, (Axis(N, True), Axis(M)), (segment,))


def shifted(name: str, element: Element) -> Kernel:
    """x[i + 1] + y[i], whose first operand is never aligned."""
    longer = Size(101)
    body = (
        Instruction("load", element.computed, access=Access(0, (ONE,), ONE)),
        Instruction("load", element.computed, access=Access(1, (ONE,))),
        step("or" if element is Element.BOOL else "add", 0, 1, element=element.computed),
    )
    segment = Segment(body, (Store(Access(0, (ONE,)), 2),))
    ports = (Port(element, (longer,)), Port(element, (Size(100),)))
    return Kernel(name, ports, ports[1:], (), (Axis(Size(100)),), (segment,))


def concatenation(name: str, first: int, second: int) -> Kernel:
    """Two matrices side by side, the second one negated."""
    width = Size(first + second)
    access = Access(0, (width, ONE))
    bodies = [
        (Instruction("load", F32, access=Access(0, (Size(first), ONE))),),
        (Instruction("load", F32, access=Access(1, (Size(second), ONE), Size(-first))), step("neg", 0)),
    ]
    segments = (
        Segment(bodies[0], (Store(access, 0),), ZERO, Size(first)),
        Segment(bodies[1], (Store(access, 1),), Size(first)),
    )
    ports = (Port(F32, (N, Size(first))), Port(F32, (N, Size(second))))
    return Kernel(name, ports, (Port(F32, (N, width)),), SYMBOLS[:1], (Axis(N), Axis(width)), segments, 1)
