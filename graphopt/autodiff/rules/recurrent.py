"""LSTM, GRU and RNN: backpropagation through time.

The output Y contains all states, so the gates of all steps are recomputed together. Apart from its matrix
products, a step is element-wise. The gradient rules of element-wise operators compute its derivatives for all
steps together. A Scan over the steps then only multiplies by these derivatives and by R. The gradients of W,
R, B and X follow from the cotangents of the gates, for all steps together.

Formulas and gate order: RNN, GRU and LSTM in the ONNX standard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt import ir
from graphopt.autodiff.building_blocks.recurrence import Direction, by_direction
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("RNN")
def rnn(op: GraphBuilder, node: PrimalNode, dy: ir.Value | None, dh: ir.Value | None = None) -> Cotangents:
    """Backpropagation through time: dgate = f'(gate) dh, and R dgate to the previous state."""
    return by_direction(op, node, lambda this: _rnn(this, this.last(dh)), dy)


def _rnn(this: Direction, dh: ir.Value) -> list[ir.Value | None]:
    op, (f,) = this.op, this.functions
    (gate,) = this.gates(_products(this, this.h, this.w, this.r, this.bias(1)), 1)

    def state(op: GraphBuilder, gate: ir.Value, before: ir.Value) -> ir.Value:
        return _state_or_before(op, f(op, gate), before, this.valid)

    _, (slope, keep) = this.slopes(state, gate, this.stepwise(this.h))

    def step(op: GraphBuilder, dh: ir.Value, *, dy: Any, slope: Any, keep: Any) -> Any:
        dh = _sum(op, dh, dy)
        dgate = op.Mul(dh, slope)
        return [_sum(op, op.MatMul(dgate, this.r), _scaled(op, dh, keep))], [dgate]

    slices = {"dy": this.dy, "slope": this.concat_slopes(gate, slope), "keep": keep}
    dh, dgates = this.scan(step, [dh], slices, rows=1, against=True)
    rows = op.Flatten(dgates, axis=2)
    return [*_dx_dw(this, rows), op.Gemm(rows, this.h, transA=1), _biases(op, rows, rows), None, dh]


@gradient("GRU")
def gru(op: GraphBuilder, node: PrimalNode, dy: ir.Value | None, dh: ir.Value | None = None) -> Cotangents:
    """Backpropagation through time: gate derivatives times dh, and R dgates to the previous state."""
    one = _gru_after if node.attribute("linear_before_reset", 0) else _gru_before
    return by_direction(op, node, lambda this: one(this, this.last(dh)), dy)


def _gru_before(this: Direction, dh: ir.Value) -> list[ir.Value | None]:
    """The GRU that applies the reset gate to the state before multiplying by R."""
    op, (f, g) = this.op, this.functions
    w_gates, w_new = this.split(this.w, 2, 1, axis=0)
    r_gates, r_new = this.split(this.r, 2, 1, axis=0)
    bias = this.bias(3)
    b_gates, b_new = (None, None) if bias is None else this.split(bias, 2, 1)
    update, reset = this.gates(_products(this, this.h, w_gates, r_gates, b_gates), 1, 1)
    before = this.stepwise(this.h)

    def after_reset(op: GraphBuilder, reset: ir.Value, before: ir.Value) -> ir.Value:
        return op.Mul(f(op, reset), before)

    def state(op: GraphBuilder, update: ir.Value, new: ir.Value, before: ir.Value) -> ir.Value:
        return _state_or_before(
            op, _interpolate_states(op, f(op, update), g(op, new), before), before, this.valid
        )

    reset_state, (by_reset, by_before) = this.slopes(after_reset, reset, before)
    reset_state = op.Flatten(reset_state, axis=2)
    (new,) = this.gates(_products(this, reset_state, w_new, r_new, b_new), 1)
    _, (by_update, by_new, keep) = this.slopes(state, update, new, before)

    def step(
        op: GraphBuilder, dh: ir.Value, *, dy: Any, slopes: Any, new: Any, reset_state: Any, keep: Any
    ) -> Any:
        dh = _sum(op, dh, dy)
        dnew = op.Mul(dh, new)
        dreset_state = op.MatMul(dnew, r_new)
        dgates = op.Mul(op.Concat(dh, dreset_state, axis=-1), slopes)
        kept = _sum(op, op.Mul(dreset_state, reset_state), _scaled(op, dh, keep))
        return [op.Add(op.MatMul(dgates, r_gates), kept)], [dgates, dnew]

    slices = {
        "dy": this.dy,
        "slopes": this.concat_slopes(update, by_update, by_reset),
        "new": this.concat_slopes(new, by_new),
        "reset_state": this.concat_slopes(before, by_before),
        "keep": keep,
    }
    dh, dgates, dnew = this.scan(step, [dh], slices, rows=2, against=True)
    rows = op.Flatten(op.Concat(dgates, dnew, axis=-1), axis=2)
    dr = op.Concat(
        op.Gemm(op.Flatten(dgates, axis=2), this.h, transA=1),
        op.Gemm(op.Flatten(dnew, axis=2), reset_state, transA=1),
        axis=0,
    )
    return [*_dx_dw(this, rows), dr, _biases(op, rows, rows), None, dh]


def _gru_after(this: Direction, dh: ir.Value) -> list[ir.Value | None]:
    """The GRU that applies the reset gate to the product with R."""
    op, (f, g) = this.op, this.functions
    wb, rb = this.biases(3)
    of_x = this.gates(op.Gemm(this.x, this.w, wb, transB=1), 1, 1, 1)
    of_h = this.gates(op.Gemm(this.h, this.r, rb, transB=1), 1, 1, 1)
    update, reset = (op.Add(a, b) for a, b in zip(of_x[:2], of_h[:2], strict=True))

    def state(
        op: GraphBuilder, update: ir.Value, reset: ir.Value, x: ir.Value, h: ir.Value, before: ir.Value
    ) -> ir.Value:
        new = g(op, op.Add(x, op.Mul(f(op, reset), h)))
        return _state_or_before(op, _interpolate_states(op, f(op, update), new, before), before, this.valid)

    gates = (update, reset, of_x[2], of_h[2])
    _, (by_update, by_reset, by_x, by_h, keep) = this.slopes(state, *gates, this.stepwise(this.h))

    def step(op: GraphBuilder, dh: ir.Value, *, dy: Any, slopes: Any, new: Any, keep: Any) -> Any:
        dh = _sum(op, dh, dy)
        dgates = op.Mul(op.Concat(dh, dh, dh, axis=-1), slopes)
        return [_sum(op, op.MatMul(dgates, this.r), _scaled(op, dh, keep))], [dgates, op.Mul(dh, new)]

    slices = {
        "dy": this.dy,
        "slopes": this.concat_slopes(update, by_update, by_reset, by_h),
        "new": this.concat_slopes(update, by_x),
        "keep": keep,
    }
    dh, dgates, dnew = this.scan(step, [dh], slices, rows=2, against=True)
    both, _ = this.split(dgates, 2, 1)
    rows = op.Flatten(op.Concat(both, dnew, axis=-1), axis=2)
    recurrent_rows = op.Flatten(dgates, axis=2)
    return [
        *_dx_dw(this, rows),
        op.Gemm(recurrent_rows, this.h, transA=1),
        _biases(op, rows, recurrent_rows),
        None,
        dh,
    ]


@gradient("LSTM")
def lstm(
    op: GraphBuilder,
    node: PrimalNode,
    dy: ir.Value | None,
    dh: ir.Value | None = None,
    dc: ir.Value | None = None,
) -> Cotangents:
    """Backpropagation through time: gate derivatives times dh and dc, and R dgates to the previous state."""
    return by_direction(op, node, lambda this: _lstm(this, this.last(dh), this.last(dc)), dy)


def _lstm(this: Direction, dh: ir.Value, dc: ir.Value) -> list[ir.Value | None]:
    op, (f, g, squashed) = this.op, this.functions
    coupled = this.node.attribute("input_forget", 0)
    peepholes = this.peepholes()
    p_in, p_out, p_forget = peepholes or (None, None, None)
    gates = _products(this, this.h, this.w, this.r, this.bias(4))
    enter, leave, forget, new = this.gates(gates, 1, 1, 1, 1)

    def parts(op: GraphBuilder, enter: Any, forget: Any, new: Any, before: Any) -> tuple[ir.Value, ir.Value]:
        """The factor of the previous cell state, and the summand."""
        enter = f(op, _sum(op, enter, _scaled(op, before, p_in)))
        left = op.Sub(1.0, enter) if coupled else f(op, _sum(op, forget, _scaled(op, before, p_forget)))
        return left, op.Mul(enter, g(op, new))

    def cell(op: GraphBuilder, enter: Any, forget: Any, new: Any, before: Any) -> ir.Value:
        return _carried_cotangent(op, *parts(op, enter, forget, new, before), before, this.valid)

    def state(op: GraphBuilder, leave: Any, c: Any, before: Any) -> ir.Value:
        output = f(op, _sum(op, leave, _scaled(op, c, p_out)))
        return _state_or_before(op, op.Mul(output, squashed(op, c)), before, this.valid)

    def carry(op: GraphBuilder, c: ir.Value, *, valid: Any, **given: Any) -> Any:
        left, added = parts(op, before=c, **given) if peepholes else given.values()
        return [_carried_cotangent(op, left, added, c, valid)], [op.Identity(c)]

    if peepholes:
        slices: dict[str, ir.Value | None] = {"enter": enter, "forget": forget, "new": new}
    else:
        slices = dict(zip(("left", "added"), parts(op, enter, forget, new, None), strict=True))
    _, before = this.scan(carry, [this.first(6)], {**slices, "valid": this.valid}, rows=1)
    c, (by_enter, by_forget, by_new, left) = this.slopes(cell, enter, forget, new, before)
    _, (by_leave, by_c, keep) = this.slopes(state, leave, c, this.stepwise(this.h))

    def step(
        op: GraphBuilder, dh: ir.Value, dc: ir.Value, *, dy: Any, slopes: Any, by_c: Any, left: Any, keep: Any
    ) -> Any:
        dh = _sum(op, dh, dy)
        dc = op.Add(dc, op.Mul(dh, by_c))
        dgates = op.Mul(op.Concat(dc, dh, dc, dc, axis=-1), slopes)
        return [_sum(op, op.MatMul(dgates, this.r), _scaled(op, dh, keep)), op.Mul(dc, left)], [dgates]

    slices = {
        "dy": this.dy,
        "slopes": this.concat_slopes(enter, by_enter, by_leave, by_forget, by_new),
        "by_c": this.concat_slopes(c, by_c),
        "left": this.concat_slopes(c, left),
        "keep": keep,
    }
    dh, dc, dgates = this.scan(step, [dh, dc], slices, rows=1, against=True)
    rows = op.Flatten(dgates, axis=2)
    dp = None
    if peepholes:
        denter, dleave, dforget, _ = this.split(dgates, 1, 1, 1, 1)
        read = ((denter, before), (dleave, c), (dforget, before))
        dp = op.Concat(*(op.ReduceSum(op.Mul(a, b), [0, 1], keepdims=0) for a, b in read), axis=0)
    dr, db = op.Gemm(rows, this.h, transA=1), _biases(op, rows, rows)
    return [*_dx_dw(this, rows), dr, db, None, dh, dc, dp]


def _products(this: Direction, h: ir.Value, w: ir.Value, r: ir.Value, bias: ir.Value | None) -> ir.Value:
    """X Wᵀ + H Rᵀ + B, [steps · batch, gates · hidden]."""
    op = this.op
    return op.Gemm(h, r, op.Gemm(this.x, w, bias, transB=1), transB=1)


def _interpolate_states(op: GraphBuilder, share: ir.Value, new: ir.Value, before: ir.Value) -> ir.Value:
    return op.Add(op.Mul(op.Sub(1.0, share), new), op.Mul(share, before))


def _carried_cotangent(op: GraphBuilder, left: Any, added: Any, before: Any, valid: Any) -> ir.Value:
    return _state_or_before(op, op.Add(op.Mul(left, before), added), before, valid)


def _state_or_before(op: GraphBuilder, state: ir.Value, before: ir.Value, valid: ir.Value | None) -> ir.Value:
    """``state``; after the end of a sequence, ``before``."""
    return state if valid is None else op.Where(valid, state, before)


def _sum(op: GraphBuilder, a: ir.Value, b: ir.Value | None) -> ir.Value:
    return a if b is None else op.Add(a, b)


def _scaled(op: GraphBuilder, x: ir.Value, factor: ir.Value | None) -> ir.Value | None:
    return None if factor is None else op.Mul(x, factor)


def _dx_dw(this: Direction, rows: ir.Value) -> Sequence[ir.Value]:
    """The gradients of X, [steps · batch, inputs], and of W."""
    op = this.op
    return op.Gemm(rows, this.w), op.Gemm(rows, this.x, transA=1)


def _biases(op: GraphBuilder, rows_w: ir.Value, rows_r: ir.Value) -> ir.Value:
    sums = [op.ReduceSum(rows_w, [0], keepdims=0)]
    sums.append(sums[0] if rows_r is rows_w else op.ReduceSum(rows_r, [0], keepdims=0))
    return op.Concat(*sums, axis=0)
