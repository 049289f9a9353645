"""Branches and loops: Python's own in PyTorch, and If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_RANDOM = np.random.default_rng(1)


def cases() -> Iterator[Case]:
    """Ifs, Loops by count and by condition, Scans along several axes, and nested ones."""
    yield from _branches()
    yield from _counted()
    yield from _conditional()
    yield from _scans()
    yield from _nested()
    yield from _lists()


def _numbers(*shape: int, dtype: type = np.float64) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(dtype)


def _branches() -> Iterator[Case]:
    import torch

    def function(x: Any, w: Any, taken: Any) -> Any:
        return torch.sin(x * w) * x if taken else torch.exp(x)

    text = """m (double[A,B] x, double[B] w, bool taken) => (double[C,D] y) { y = If(taken) <
        then_branch = t () => (double[P,Q] a) { b = Mul(x, w) c = Sin(b) a = Mul(c, x) },
        else_branch = e () => (double[R,S] d) { d = Exp(x) }> }"""
    for taken in (True, False):
        for dtype, name in ((np.float64, "double"), (np.float32, "float")):
            feeds = {
                "x": _numbers(2, 3, dtype=dtype),
                "w": _numbers(3, dtype=dtype),
                "taken": np.array(taken),
            }
            yield Case(f"If {taken} {name}", text.replace("double", name), feeds, function)

    def chosen(x: Any, w: Any) -> Any:
        y = x @ w if x.sum() > 0 else x.mean(0, keepdim=True) @ w
        return torch.tanh(y), (y * y).sum()

    text = """m (double[A,B] x, double[B,C] w) => (double[D,C] z, double s) {
        total = ReduceSum<keepdims = 0>(x) zero = CastLike(none, total) more = Greater(total, zero)
        y = If(more) <
            then_branch = t () => (double[P,Q] a) { a = MatMul(x, w) },
            else_branch = e () => (double[R,S] b) {
                first = Constant<value = int64[1] {0}>() m = ReduceMean(x, first) b = MatMul(m, w) }>
        z = Tanh(y) q = Mul(y, y) s = ReduceSum<keepdims = 0>(q) }"""
    text = text.replace("total = ", "none = Constant<value = float {0}>() total = ", 1)
    for sign in (1, -1):
        x = sign * np.abs(_numbers(4, 3))
        yield Case(f"If by a sum of sign {sign}", text, {"x": x, "w": _numbers(3, 2)}, chosen)


_RECURRENCE = """m (double[B,C] h0, double[T,B,C] x, double[C,C] w, double[C] b)
    => (double[B,C] h, double[T,B,C] ys) {
    all = Shape(x) first = Constant<value = int64 {0}>() n = Gather(all, first)
    h, ys = Loop(n, , h0) <body = g (int64 i, bool ci, double[P,Q] hi)
        => (bool co, double[R,S] ho, double[U,V] yo) {
            xi = Gather(x, i) m = MatMul(hi, w) p = Add(m, xi) s = Add(p, b) ho = Tanh(s)
            yo = Mul(ho, xi) co = Identity(ci) }> }"""


def _counted() -> Iterator[Case]:
    import torch

    def recurrence(h: Any, x: Any, w: Any, b: Any) -> Any:
        rows = []
        for step in x:
            h = torch.tanh(h @ w + step + b)
            rows.append(h * step)
        return h, torch.stack(rows)

    for dtype, name in ((np.float64, "double"), (np.float32, "float")):
        for trips in (1, 5):
            shapes = {"h0": (2, 3), "x": (trips, 2, 3), "w": (3, 3), "b": (3,)}
            feeds = {key: _numbers(*shape, dtype=dtype) for key, shape in shapes.items()}
            yield Case(f"Loop {name} {trips}", _RECURRENCE.replace("double", name), feeds, recurrence)

    def powers(x: Any, w: Any, count: Any) -> Any:
        a, b = x, w
        for index in range(int(count)):
            a, b = b * torch.sin(a), a + index * x
        return a, b

    text = """m (double[N] x, double[N] w, int64 count) => (double[N] a, double[N] b) {
        a, b = Loop(count, , x, w) <body = g (int64 i, bool ci, double[P] ai, double[Q] bi)
            => (bool co, double[R] ao, double[S] bo) {
                s = Sin(ai) ao = Mul(bi, s) f = CastLike(i, x) t = Mul(f, x) bo = Add(ai, t)
                co = Identity(ci) }> }"""
    for count in (0, 1, 4):
        feeds = {"x": _numbers(3), "w": _numbers(3), "count": np.array(count)}
        yield Case(f"Loop of two states {count}", text, feeds, powers)

    def growing(x: Any, w: Any, count: Any) -> Any:
        for _ in range(int(count)):
            x = torch.cat([torch.sin(x * x), w * x.sum()])
        return x

    text = """m (double[N] x, double[K] w, int64 count) => (double[M] y) {
        y = Loop(count, , x) <body = g (int64 i, bool ci, double[P] xi) => (bool co, double[Q] xo) {
            q = Mul(xi, xi) s = Sin(q) t = ReduceSum<keepdims = 0>(xi) u = Mul(w, t)
            xo = Concat<axis = 0>(s, u) co = Identity(ci) }> }"""
    for count in (0, 1, 3):
        feeds = {"x": _numbers(3), "w": _numbers(2), "count": np.array(count)}
        yield Case(f"Loop of a state that grows {count}", text, feeds, growing)


def _conditional() -> Iterator[Case]:
    import torch

    def until(x: Any, w: Any, limit: Any) -> Any:
        steps = []
        for index in range(8):
            x = x + torch.exp(w) / (index + 1)
            steps.append((x * x).sum())
            if not steps[-1] < limit:
                break
        return x, torch.stack(steps)

    text = """m (double[N] x, double[N] w, double limit) => (double[N] y, double[T] sums) {
        LIMIT yes = Constant<value = bool {1}>()
        y, sums = Loop(COUNT, yes, x) <body = g (int64 i, bool ci, double[P] xi)
            => (bool co, double[Q] xo, double s) {
                one = Constant<value = int64 {1}>() j = Add(i, one) f = CastLike(j, limit)
                e = Exp(w) d = Div(e, f) xo = Add(xi, d) q = Mul(xo, xo) s = ReduceSum<keepdims = 0>(q)
                small = Less(s, limit) STOP }> }"""
    counted = text.replace("LIMIT", "most = Constant<value = int64 {8}>()").replace("COUNT", "most")
    counted = counted.replace("STOP", "co = Identity(small)")
    open_ = text.replace("LIMIT", "").replace("COUNT", "")
    open_ = open_.replace(
        "STOP", "seven = Constant<value = int64 {7}>() few = Less(i, seven) co = And(small, few)"
    )
    for label, spelt in (("Loop that leaves early", counted), ("Loop without a count", open_)):
        for limit in (0.5, 20.0, 1e6):
            feeds = {"x": _numbers(3), "w": _numbers(3) / 2, "limit": np.array(limit)}
            yield Case(f"{label} {limit:g}", spelt, feeds, until, frozen=("limit",))


def _scans() -> Iterator[Case]:
    import torch

    def scanned(axes: tuple[int, ...], back: tuple[int, ...]) -> Callable[..., Any]:
        def function(s: Any, x: Any, z: Any, w: Any) -> Any:
            ins = [x.unbind(axes[0]), z.unbind(axes[1])]
            ins = [items[::-1] if flip else items for items, flip in zip(ins, back[:2], strict=True)]
            first, second = [], []
            for xi, zi in zip(*ins, strict=True):
                s = torch.sin(s * xi + zi) * w
                first.append(s * zi)
                second.append(torch.exp(s))
            outs = [
                items[::-1] if flip else items for items, flip in zip((first, second), back[2:], strict=True)
            ]
            return s, torch.stack(outs[0], axes[2]), torch.stack(outs[1], axes[3])

        return function

    text = """m (double[B,C] s0, double[D1,D2,D3] x, double[E1,E2,E3] z, double[C] w)
        => (double[B,C] s, double[F1,F2,F3] us, double[G1,G2,G3] vs) {
        s, us, vs = Scan(s0, x, z) <num_scan_inputs = 2, scan_input_axes = [AXES],
            scan_input_directions = [BACK], scan_output_axes = [OUTER], scan_output_directions = [OUTBACK],
            body = g (double[P1,P2] si, double[Q1,Q2] xi, double[R1,R2] zi)
                => (double[S1,S2] so, double[T1,T2] u, double[U1,U2] v) {
                    a = Mul(si, xi) b = Add(a, zi) c = Sin(b) so = Mul(c, w) u = Mul(so, zi)
                    v = Exp(so) }> }"""
    choices = [
        ((0, 0, 0, 0), (0, 0, 0, 0)),
        ((0, 0, 0, 0), (1, 0, 1, 0)),
        ((1, 2, 0, 1), (0, 1, 0, 0)),
        ((2, 0, 2, 0), (0, 0, 0, 1)),
        ((-1, 1, -2, -1), (1, 1, 1, 1)),
    ]
    for axes, back in choices:
        spelt = text.replace("AXES", f"{axes[0]}, {axes[1]}").replace("OUTER", f"{axes[2]}, {axes[3]}")
        spelt = spelt.replace("OUTBACK", f"{back[2]}, {back[3]}").replace("BACK", f"{back[0]}, {back[1]}")
        slices = [np.stack([_numbers(2, 3) for _ in range(4)], axis) for axis in axes[:2]]
        feeds = {"s0": _numbers(2, 3), "x": slices[0], "z": slices[1], "w": _numbers(3)}
        yield Case(f"Scan axes {axes} backwards {back}", spelt, feeds, scanned(axes, back))


def _nested() -> Iterator[Case]:
    import torch

    def turns(x: Any, w: Any, count: Any) -> Any:
        for index in range(int(count)):
            x = torch.sin(x * w) if index % 2 == 0 else x + w * w
        return x

    text = """m (double[N] x, double[N] w, int64 count) => (double[N] y) {
        y = Loop(count, , x) <body = g (int64 i, bool ci, double[P] xi) => (bool co, double[Q] xo) {
            two = Constant<value = int64 {2}>() zero = Constant<value = int64 {0}>()
            odd = Mod(i, two) even = Equal(odd, zero)
            xo = If(even) <
                then_branch = t () => (double[R] a) { b = Mul(xi, w) a = Sin(b) },
                else_branch = e () => (double[S] c) { d = Mul(w, w) c = Add(xi, d) }>
            co = Identity(ci) }> }"""
    for count in (0, 1, 2, 5):
        feeds = {"x": _numbers(3), "w": _numbers(3), "count": np.array(count)}
        yield Case(f"If in Loop {count}", text, feeds, turns)

    def triangle(x: Any, w: Any, count: Any) -> Any:
        sums = []
        for index in range(int(count)):
            y = x
            for inner in range(index):
                y = torch.tanh(y * w) + inner * x
            x = x + y
            sums.append(y.sum())
        return x, torch.stack(sums)

    text = """m (double[N] x, double[N] w, int64 count) => (double[N] y, double[T] sums) {
        y, sums = Loop(count, , x) <body = g (int64 i, bool ci, double[P] xi)
            => (bool co, double[Q] xo, double s) {
                yi = Loop(i, , xi) <body = h (int64 j, bool cj, double[R] ui) => (bool ck, double[S] uo) {
                    a = Mul(ui, w) b = Tanh(a) f = CastLike(j, w) k = Mul(f, xi) uo = Add(b, k)
                    ck = Identity(cj) }>
                xo = Add(xi, yi) s = ReduceSum<keepdims = 0>(yi) co = Identity(ci) }> }"""
    for count in (1, 2, 4):
        feeds = {"x": _numbers(3) / 2, "w": _numbers(3), "count": np.array(count)}
        yield Case(f"Loop in Loop {count}", text, feeds, triangle)

    def cumulative(x: Any, w: Any, taken: Any) -> Any:
        if not taken:
            return x * w
        rows, state = [], torch.zeros_like(w)
        for row in x:
            state = torch.sin(state + row) * w
            rows.append(state)
        return torch.stack(rows)

    text = """m (double[T,N] x, double[N] w, bool taken) => (double[T2,N2] y) { y = If(taken) <
        then_branch = t () => (double[P,Q] a) {
            minus = Neg(w) zero = Add(w, minus)
            s, a = Scan(zero, x) <num_scan_inputs = 1, body = g (double[R] si, double[S] xi)
                => (double[U] so, double[V] yo) {
                    b = Add(si, xi) c = Sin(b) so = Mul(c, w) yo = Identity(so) }> },
        else_branch = e () => (double[X,Y] d) { d = Mul(x, w) }> }"""
    for taken in (True, False):
        feeds = {"x": _numbers(4, 3), "w": _numbers(3), "taken": np.array(taken)}
        yield Case(f"Scan in If {taken}", text, feeds, cumulative)


def _lists() -> Iterator[Case]:
    import torch

    def appended(x: Any, w: Any, count: Any) -> Any:
        found = []
        for _ in range(int(count)):
            x = torch.cat([torch.tanh(x * w), x[:1]])
            found.append(x)
        return torch.cat(found)

    text = """m (double[A,B] x, double[B] w, int64 count) => (double[C,D] y) {
        none = SequenceEmpty<dtype = 11>() zero = Constant<value = int64[1] {0}>()
        one = Constant<value = int64[1] {1}>()
        last, all = Loop(count, , x, none) <body = g (int64 i, bool ci, double[P,Q] xi, seq(double[]) si)
            => (bool co, double[R,S] xo, seq(double[]) so) {
                a = Mul(xi, w) b = Tanh(a) f = Slice(xi, zero, one) xo = Concat<axis = 0>(b, f)
                so = SequenceInsert(si, xo) co = Identity(ci) }>
        y = ConcatFromSequence<axis = 0>(all) }"""
    for count in (1, 3):
        feeds = {"x": _numbers(2, 3), "w": _numbers(3), "count": np.array(count)}
        yield Case(f"Loop that fills a list {count}", text, feeds, appended)

    def picked(x: Any, y: Any, place: Any) -> Any:
        return torch.exp([x, y, x * y][int(place)]) * x

    text = """m (double[N] x, double[N] y, int64 place) => (double[N] z) {
        p = Mul(x, y) s = SequenceConstruct(x, y, p) a = SequenceAt(s, place) e = Exp(a) z = Mul(e, x) }"""
    for place in (0, 2, -1):
        feeds = {"x": _numbers(3), "y": _numbers(3), "place": np.array(place)}
        yield Case(f"SequenceAt {place}", text, feeds, picked)
