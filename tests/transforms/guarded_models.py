"""Small models with intermediate values whose shapes depend on data."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from tests.model_testing import parse

#: Numbers that depend on the number of rows of ``rows`` only, without contents of ``rows``.
_POSITIONS = """
    {p}sizes = Shape({rows})
    {p}n = Gather({p}sizes, zero)
    {p}range = Range(zero, {p}n, one)
    {p}row = Unsqueeze({p}range, axis)
    {p}column = Unsqueeze({p}range, last)
    {p}hidden = Greater({p}row, {p}column)
    {p}far = Cast <to = 1>({p}hidden)
    {p}total = ReduceSum <keepdims = 0>({p}far, axis)
    {p}vector = Unsqueeze({p}total, last)
    {p}scaled = Mul({p}vector, half)
    {p}whole = Floor({p}scaled)
    {p}sum = Add({rows}, {p}whole)
"""
_CONSTANTS = "int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] last = {1}, float half = {0.5}"


def _model(graph: str, opset: int) -> ir.Model:
    return parse(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')


def selected_rows(*, width: int = 4, opset: int = 17) -> ir.Model:
    """Selects the rows of x with a positive first number, and adds their positions to a product of them."""
    weight = ", ".join(map(str, np.random.default_rng(0).integers(-3, 3, width * width)))
    return _model(
        f"""g (float[N,{width}] x) => (float[K,{width}] y, int64[1,K] found)
        <float[{width},{width}] w = {{{weight}}}, {_CONSTANTS}> {{
            firsts = Gather <axis = 1>(x, zero)
            flag = Greater(firsts, half)
            found = NonZero(flag)
            index = Squeeze(found, axis)
            chosen = Gather(x, index)
            product = MatMul(chosen, w)
            {_POSITIONS.format(rows="product", p="p")}
            y = Relu(psum)
        }}""",
        opset,
    )


def positions_and_selected_rows(*, opset: int = 17) -> ir.Model:
    """Adds positions to x, and to selected rows: the number of rows of x is known before the run, the other not."""
    return _model(
        f"""g (float[N,4] x) => (float[N,4] z, float[K,4] y) <{_CONSTANTS}> {{
            {_POSITIONS.format(rows="x", p="x_")}
            z = Neg(x_sum)
            firsts = Gather <axis = 1>(x, zero)
            flag = Greater(firsts, half)
            found = NonZero(flag)
            index = Squeeze(found, axis)
            chosen = Gather(z, index)
            {_POSITIONS.format(rows="chosen", p="p")}
            y = Relu(psum)
        }}""",
        opset,
    )


def growing_rows(*, opset: int = 17) -> ir.Model:
    """A loop whose state, a matrix, has one more row after each trip; the body adds positions to the rows."""
    return _model(
        f"""g (float[A,2] x, int64 trips) => (float[B,2] y) <{_CONSTANTS}> {{
            y = Loop(trips, , x) <body = b (int64 i, bool go, float[R,2] state) => (bool on, float[S,2] next) {{
                {_POSITIONS.format(rows="state", p="p")}
                first = Slice(psum, axis, last)
                next = Concat <axis = 0>(psum, first)
                on = Identity(go)
            }}>
        }}""",
        opset,
    )


def selected_and_growing_rows(*, opset: int = 17) -> ir.Model:
    """Selects rows of x as :func:`selected_rows` does; if there are three or more, it adds rows in a loop."""
    return _model(
        f"""g (float[N,2] x, int64 trips) => (float[B,2] y) <{_CONSTANTS}, int64 two = {{2}}> {{
            firsts = Gather <axis = 1>(x, zero)
            flag = Greater(firsts, half)
            found = NonZero(flag)
            index = Squeeze(found, axis)
            chosen = Gather(x, index)
            sizes = Shape(chosen)
            n = Gather(sizes, zero)
            many = Greater(n, two)
            grown = If (many) <
                then_branch = t () => (float[C,2] loop) {{
                    loop = Loop(trips, , chosen) <body = b (int64 i, bool go, float[R,2] state) => (bool on, float[S,2] next) {{
                        {_POSITIONS.format(rows="state", p="p")}
                        first = Slice(psum, axis, last)
                        next = Concat <axis = 0>(psum, first)
                        on = Identity(go)
                    }}>
                }},
                else_branch = e () => (float[D,2] other) {{ other = Neg(chosen) }}
            >
            y = Relu(grown)
        }}""",
        opset,
    )


def twice_selected_rows(*, opset: int = 17) -> ir.Model:
    """Selects rows as :func:`selected_rows` does, and from these all rows or one row with a positive second number.

    The last result depends on the sizes of both selections.
    """
    return _model(
        f"""g (float[N,4] x) => (float[K,4] y, float[L,4] z) <{_CONSTANTS}> {{
            firsts = Gather <axis = 1>(x, zero)
            flag = Greater(firsts, half)
            found = NonZero(flag)
            index = Squeeze(found, axis)
            chosen = Gather(x, index)
            {_POSITIONS.format(rows="chosen", p="p")}
            seconds = Gather <axis = 1>(chosen, one)
            flag2 = Greater(seconds, half)
            found2 = NonZero(flag2)
            index2 = Squeeze(found2, axis)
            chosen2 = Gather(psum, index2)
            {_POSITIONS.format(rows="chosen2", p="q")}
            y = Relu(qsum)
            expanded = Expand(psum, qsizes)
            z = Neg(expanded)
        }}""",
        opset,
    )


def weights_in_branches(*, opset: int = 17) -> ir.Model:
    """Multiplies the rows of an intermediate value with one of two matrices, stored in the branches of an If."""
    numbers = ", ".join(map(str, range(144)))
    return _model(
        f"""g (float[N,12] x) => (float[B,12] y) <{_CONSTANTS}, int64 two = {{2}}> {{
            firsts = Gather <axis = 1>(x, zero)
            flag = Greater(firsts, half)
            found = NonZero(flag)
            index = Squeeze(found, axis)
            chosen = Gather(x, index)
            sizes = Shape(chosen)
            n = Gather(sizes, zero)
            many = Greater(n, two)
            y = If (many) <
                then_branch = t () => (float[C,12] a) <float[12,12] w = {{{numbers}}}> {{ a = MatMul(chosen, w) }},
                else_branch = e () => (float[D,12] b) {{ b = Neg(chosen) }}
            >
        }}""",
        opset,
    )


def chosen_rows(*, opset: int = 17) -> ir.Model:
    """An If whose branches return matrices with different numbers of rows."""
    return _model(
        f"""g (float[4,2] x, bool flag) => (float[K,2] y) <{_CONSTANTS}, int64[1] two = {{2}}> {{
            rows = If (flag) <
                then_branch = t () => (float[I,2] a) {{ a = Slice(x, axis, two) }},
                else_branch = e () => (float[J,2] b) {{ b = Identity(x) }}
            >
            {_POSITIONS.format(rows="rows", p="p")}
            y = Neg(psum)
        }}""",
        opset,
    )


def rows_with(positive: int, rows: int = 6, width: int = 4) -> np.ndarray:
    """A matrix of small integers, in which the first number of ``positive`` rows is positive."""
    x = np.random.default_rng(positive).integers(-4, 4, (rows, width)).astype(np.float32)
    x[:, 0] = -1
    x[:positive, 0] = 2
    return x
