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
