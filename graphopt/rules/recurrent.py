"""LSTM, GRU and RNN: inputs that equal the default of an omitted input."""

from __future__ import annotations

from graphopt.analysis.shape_inference.fills import is_number
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks.operands import operand

_LAYERS = ("LSTM", "GRU", "RNN")
_BIAS, _LENGTHS, _INITIAL_H, _INITIAL_C, _PEEPHOLES = 3, 4, 5, 6, 7


@rule(
    lambda op, rest: op.one_of(*_LAYERS)(rest.rest()),
    lambda op, rest: op.domain("com.microsoft").DynamicQuantizeLSTM(rest.rest()),
    numerics=Exact,
    proven_exact=True,
)
def drop_initial_zeros(op: Builder, m: Match) -> Outcome:
    """LSTM(x, …, initial_h=0) → LSTM(x, …); likewise initial_c, GRU and RNN."""
    return _without_inputs(
        op, m, [i for i in (_INITIAL_H, _INITIAL_C) if is_number(m.fill(operand(m.root, i)), 0.0)]
    )


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
