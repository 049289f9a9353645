"""Small models with loops, branches, functions and data-dependent shapes, and inputs of several shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from graphopt import ir
from tests.executor.run_hooks import ANY
from tests.model_testing import parse
from tests.specialization.models import feeds_of, positions
from tests.transforms import guarded_models

Feeds = dict[str, np.ndarray]


def _weights(*shape: int) -> str:
    """The elements of an initializer, as text."""
    return ", ".join(map(str, np.random.default_rng(0).standard_normal(shape).round(3).ravel()))


_LSTM = f"""g (float[T, B, 3] x, float[1, B, 2] h0) => (float[T, one, B, 2] y, float[one, B, 2] h)
<float[1, 8, 3] w = {{{_weights(1, 8, 3)}}}, float[1, 8, 2] r = {{{_weights(1, 8, 2)}}}> {{
    s = Tanh(x)
    y, h = LSTM <hidden_size = 2> (s, w, r, , , h0)
}}"""

_SCAN = f"""g (float[T, B, 4] x, float[B, 4] h0) => (float[B, 4] h, float[T, B, 4] ys)
<float[4, 4] w = {{{_weights(4, 4)}}}> {{
    h, ys = Scan <num_scan_inputs = 1, body = b (float[B, 4] before, float[B, 4] row) => (float[B, 4] after, float[B, 4] out) {{
        p = MatMul(before, w) a = Add(p, row) after = Tanh(a) out = Identity(after)
    }}> (h0, x)
}}"""

#: ``n`` trips; stops early if the sum of a row exceeds 9.
_LOOP = """g (float[B, N] x, int64 n) => (float[B, N] y, float[M, B, N] steps)
<bool yes = {1}, float limit = {9}, float half = {0.5}> {
    y, steps = Loop (n, yes, x) <body = b (int64 i, bool going, float[B, N] v) => (bool on, float[B, N] w, float[B, N] out) {
        f = Cast <to = 1>(i) s = Sin(v) t = Mul(s, half) u = Add(v, t) w = Add(u, f)
        total = ReduceMax <keepdims = 0>(w) on = Less(total, limit) out = Identity(w)
    }>
}"""

#: A branch by contents, inside a loop whose trip count is the size of a dim.
_NESTED = """g (float[N, 3] x) => (float[3] y)
<bool yes = {1}, int64 zero = {0}, float none = {0}, float[3] start = {0, 0, 0}> {
    sizes = Shape(x) n = Gather(sizes, zero)
    y = Loop (n, yes, start) <body = b (int64 i, bool going, float[3] v) => (bool on, float[3] w) {
        row = Gather(x, i) total = ReduceSum <keepdims = 0>(row) is = Greater(total, none)
        w = If (is) <then_branch = t () => (float[3] p) { p = Add(v, row) },
                     else_branch = e () => (float[3] q) { m = Mul(v, row) q = Sub(m, row) }>
        on = Identity(going)
    }>
}"""

#: Two branches with different ranks inside, by the contents of an input.
_BRANCHES = """g (float[B, N] x, int64 mode) => (float[B, N] y) <int64 two = {2}, int64[1] last = {-1}, int64[3] three = {0, 0, 1}> {
    fast = Equal(mode, two)
    y = If (fast) <
        then_branch = t () => (float[B, N] p) { r = Reshape(x, three) s = Softmax <axis = 1>(r) p = Squeeze(s, last) },
        else_branch = e () => (float[B, N] q) { m = ReduceMean <axes = [-1]>(x) d = Sub(x, m) q = Abs(d) }
    >
}"""

_FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[B, N, 4] x) => (float[B, N, 4] y) {
    a = local.norm <epsilon = 0.01>(x)
    b = Sigmoid(a)
    y = local.norm <epsilon = 0.1>(b)
}
<domain: "local", opset_import: ["" : 17]>
norm <epsilon> (v) => (w) {
    e = Constant <value_float: float = @epsilon>()
    last = Constant <value_ints = [-1]>()
    m = ReduceMean <axes = [-1]>(v)
    d = Sub(v, m)
    sq = Mul(d, d)
    var = ReduceMean <axes = [-1]>(sq)
    f = Add(var, e)
    s = Sqrt(f)
    w = Div(d, s)
}"""

#: The rows of x whose mask is set, and their number.
_NONZERO = """g (float[N, 4] x, bool[N] mask) => (float[K, 4] y, int64 count)
<int64[1] first = {0}, int64 zero = {0}> {
    found = NonZero(mask) rows = Squeeze(found, first) kept = Gather(x, rows)
    sizes = Shape(kept) count = Gather(sizes, zero) y = Exp(kept)
}"""

#: A causal mask for a cache of past rows.
_CACHE = f"""g (float[B, N, 4] x, float[B, P, 4] past) => (float[B, N, 4] y, float[B, T, 4] present)
<float[4, 4] w = {{{_weights(4, 4)}}}, int64 one = {{1}}, int64 zero = {{0}}, int64[1] axis = {{0}}, int64[1] last = {{1}}, float least = {{-100}}> {{
    new = MatMul(x, w)
    present = Concat <axis = 1>(past, new)
    before = Shape(past) p = Gather(before, one)
    after = Shape(present) t = Gather(after, one)
    keys = Range(zero, t, one) queries = Range(p, t, one)
    row = Unsqueeze(keys, axis) column = Unsqueeze(queries, last)
    hidden = Greater(row, column)
    turned = Transpose <perm = [0, 2, 1]>(present)
    scores = MatMul(x, turned)
    masked = Where(hidden, least, scores)
    probabilities = Softmax <axis = -1>(masked)
    y = MatMul(probabilities, present)
}}"""

#: A table of the first n positions, with a shape that depends on the contents of an input.
_TABLE = """g (int64[1] n, float[B, 4] x) => (float[K, B, 4] y) <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[2] inner = {1, 2}> {
    count = Squeeze(n, first) positions = Range(zero, count, one) f = Cast <to = 1>(positions)
    column = Unsqueeze(f, inner) y = Mul(column, x)
}"""

_SEQUENCE = """g (float[N, 4] x, int64 n) => (float[M, 4] y) <bool yes = {1}, int64[1] last = {-1}> {
    empty = SequenceEmpty <dtype = 1>()
    rows = Loop (n, yes, empty) <body = b (int64 i, bool going, seq(float[N, 4]) v) => (bool on, seq(float[N, 4]) w) {
        f = Cast <to = 1>(i) r = Add(x, f) w = SequenceInsert(v, r) on = Identity(going)
    }>
    whole = SequenceInsert(rows, x)
    y = ConcatFromSequence <axis = 0>(whole)
}"""


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _integer(value: int) -> np.ndarray:
    return np.array(value, np.int64)


Draw = Callable[[np.random.Generator, int, int], Feeds]

#: Models, and functions that draw inputs for two sizes.
_MODELS: dict[str, tuple[Callable[[], ir.Model], Draw]] = {
    "positions": (positions, lambda rng, a, b: feeds_of(a, b, int(rng.integers(1, 4)))),
    "any rank": (
        lambda: parse(ANY),
        lambda rng, a, b: {"x": _normal(rng, a, b, 2), "z": _normal(rng, b, 2)},
    ),
    "lstm": (
        lambda: parse(_LSTM),
        lambda rng, a, b: {"x": _normal(rng, b, a, 3), "h0": _normal(rng, 1, a, 2)},
    ),
    "scan": (lambda: parse(_SCAN), lambda rng, a, b: {"x": _normal(rng, b, a, 4), "h0": _normal(rng, a, 4)}),
    "loop": (
        lambda: parse(_LOOP),
        lambda rng, a, b: {"x": _normal(rng, a, b), "n": _integer(int(rng.integers(0, 5)))},
    ),
    "nested": (lambda: parse(_NESTED), lambda rng, a, b: {"x": _normal(rng, b, 3)}),
    "branches": (
        lambda: parse(_BRANCHES),
        lambda rng, a, b: {"x": _normal(rng, a, b), "mode": _integer(int(rng.integers(1, 4)))},
    ),
    "function": (lambda: parse(_FUNCTION), lambda rng, a, b: {"x": _normal(rng, a, b, 4)}),
    "nonzero": (
        lambda: parse(_NONZERO),
        lambda rng, a, b: {"x": _normal(rng, b, 4), "mask": rng.random(b) < 0.5},
    ),
    "cache": (
        lambda: parse(_CACHE),
        lambda rng, a, b: {"x": _normal(rng, 1, a, 4), "past": _normal(rng, 1, b - 1, 4)},
    ),
    "table": (
        lambda: parse(_TABLE),
        lambda rng, a, b: {"n": _integer(int(rng.integers(0, 5))).reshape(1), "x": _normal(rng, a, 4)},
    ),
    "selected rows": (
        guarded_models.selected_rows,
        lambda rng, a, b: {"x": guarded_models.rows_with(int(rng.integers(0, a + 1)), b + 2)},
    ),
    "growing rows": (
        guarded_models.growing_rows,
        lambda rng, a, b: {"x": _normal(rng, a, 2), "trips": _integer(int(rng.integers(0, 4)))},
    ),
    "chosen rows": (
        guarded_models.chosen_rows,
        lambda rng, a, b: {"x": _normal(rng, 4, 2), "flag": np.array(rng.random() < 0.5)},
    ),
    "sequence": (
        lambda: parse(_SEQUENCE),
        lambda rng, a, b: {"x": _normal(rng, b, 4), "n": _integer(int(rng.integers(0, 4)))},
    ),
}
NAMES = tuple(_MODELS)


def model_of(name: str) -> ir.Model:
    """The model ``name``."""
    return _MODELS[name][0]()


def inputs_of(name: str) -> Iterator[Feeds]:
    """Inputs of the model ``name``: nine sets of shapes, with three values each."""
    draw: Any = _MODELS[name][1]
    rng = np.random.default_rng(0)
    for a in (1, 2, 3):
        for b in (1, 4, 7):
            for _ in range(3):
                yield draw(rng, a, b)
