"""LSTM, GRU and RNN: inputs that equal the default of an omitted input."""

from __future__ import annotations

import numpy as np

from graphopt.analysis.shape_inference.fills import is_number
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks.operands import operand

_LAYERS = ("LSTM", "GRU", "RNN")
_RECURRENT, _BIAS, _LENGTHS, _INITIAL_H, _INITIAL_C, _PEEPHOLES = 2, 3, 4, 5, 6, 7


@rule(
    lambda op, rest: op.one_of("LSTM", "GRU")(rest.rest()),
    lambda op, rest: op.domain("com.microsoft").DynamicQuantizeLSTM(rest.rest()),
    numerics=Exact,
    proven_exact=True,
)
def drop_initial_zeros(op: Builder, m: Match) -> Outcome:
    """LSTM(x, …, initial_h=0) → LSTM(x, …); likewise initial_c and GRU."""
    return _without_inputs(op, m, [i for i in (_INITIAL_H, _INITIAL_C) if _is_zero(m, i)])


@rule(lambda op, rest: op.RNN(rest.rest()), numerics=Reassociates)
def drop_initial_zeros_of_rnn(op: Builder, m: Match) -> Outcome:
    """RNN(x, …, initial_h=0) → RNN(x, …), for finite constant weights (zeros may change sign).

    Without initial_h, onnxruntime (1.31) skips the product with R in the first step, which is NaN if R is
    infinite.
    """
    weights = m.constant(operand(m.root, _RECURRENT))
    if weights is None or not bool(np.isfinite(weights).all()):
        return m.no("the recurrent weights may be infinite", operand(m.root, _RECURRENT))
    return _without_inputs(op, m, [_INITIAL_H] if _is_zero(m, _INITIAL_H) else [])


def _is_zero(m: Match, index: int) -> bool:
    """Whether the input at ``index`` is filled with 0.0."""
    return is_number(m.fill(operand(m.root, index)), 0.0)


@rule(lambda op, rest: op.one_of(*_LAYERS)(rest.rest()), numerics=Exact, proven_exact=True)
def drop_full_lengths(op: Builder, m: Match) -> Outcome:
    """LSTM(x, …, sequence_lens=all steps) → LSTM(x, …); likewise GRU and RNN."""
    shape, layout = m.shape(m.root.inputs[0]), m.attribute(m.root, "layout")
    length, steps = m.fill(operand(m.root, _LENGTHS)), None if not shape else shape[1 if layout else 0]
    return _without_inputs(op, m, [_LENGTHS] if isinstance(steps, int) and length == steps else [])


@rule(lambda op, rest: op.one_of("LSTM", "RNN")(rest.rest()), numerics=Reassociates)
def drop_recurrent_zeros(op: Builder, m: Match) -> Outcome:
    """LSTM(x, …, P=0) → LSTM(x, …); RNN(x, …, B=0) → RNN(x, …) (zeros may change sign).

    A zero bias of LSTM and GRU remains, because onnxruntime turns NaN into numbers where it adds the bias.
    """
    index = _PEEPHOLES if m.root.op_type == "LSTM" else _BIAS
    return _without_inputs(op, m, [index] if m.fill(operand(m.root, index)) == 0 else [])


def _without_inputs(op: Builder, m: Match, indices: list[int]) -> Outcome:
    """The layer without its inputs at ``indices``."""
    if not indices:
        return m.no("no input equals its default")
    inputs = [None if index in indices else value for index, value in enumerate(m.root.inputs)]
    while inputs[-1] is None:
        inputs.pop()
    return op.like(m.root, inputs)
