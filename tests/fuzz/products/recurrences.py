"""Random LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Array, ProductGraph

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: Activations for each direction.
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
_BOUNDED = ("Tanh", "Sigmoid", "HardSigmoid", "Softsign", "ScaledTanh")
_UNBOUNDED = ("Relu", "LeakyRelu", "Elu", "Affine", "ThresholdedRelu", "Softplus")


def recurrences(g: ProductGraph) -> None:
    """A recurrent operator, now and then with a second one of the same operands.

    Only X contains special values: results for infinite or NaN weights and states are unspecified.
    """
    g.opset = g.pick(14, 17, 21)
    op = g.cycle(*_GATES)
    hidden, width = g.pick(1, 2, 3, 7, 8, 16, 17, 33, 48), g.pick(1, 2, 5, 16, 31)
    direction = g.pick("forward", "reverse", "bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    is_bounded = g.chance(0.85)  # states of other functions grow exponentially with the steps
    lengths = [int(g.random.integers(1, 12)), 1, 5, 9, 2] if is_bounded else [2, 1, 1, 2, 1]
    steps = g.symbol(*lengths) if g.chance(0.5) else lengths[0]
    batch = g.symbol(1, 2, 3, 9, 17) if g.chance(0.5) else g.pick(1, 2, 5, 8)
    operands = _operands(g, op, steps, batch, width, hidden, directions)
    attributes = {"hidden_size": hidden, "direction": direction, **_attributes(g, op, directions, is_bounded)}
    outputs = g.node_with(op, 3 if op == "LSTM" else 2, operands, **attributes)
    for value in outputs[1:]:
        if g.chance(0.6):
            g.output(value)
    if g.chance(0.3):
        g.output(outputs[0])
    else:
        add_epilogue(g, outputs[0], [steps, directions, batch, hidden], most=2)
    if g.chance(0.15):
        g.output(g.node_with(op, 2, operands, **attributes)[1])


def _operands(
    g: ProductGraph, op: str, steps: int | str, batch: int | str, width: int, hidden: int, directions: int
) -> list[str]:
    # A recurrence with larger weights is chaotic: it amplifies rounding errors.
    scale = min(0.4, 0.7 / np.sqrt(hidden))

    def weight(*shape: int) -> str:
        return g.weight(*shape, scale=float(scale), may_be_special=False)

    def state() -> str:
        return g.input([directions, batch, hidden], may_be_special=False) if g.chance(0.5) else ""

    most = g.sizes[steps] if isinstance(steps, str) else [steps]

    def length(random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
        return random.integers(1 if case % 2 else 0, most[case % len(most)] + 1, shape)

    gates = _GATES[op]
    found = [g.input([steps, batch, width])]
    found += [weight(directions, gates * hidden, width), weight(directions, gates * hidden, hidden)]
    found.append(weight(directions, 2 * gates * hidden) if g.chance(0.6) else "")
    found.append(g.input([batch], np.int32, length) if g.chance(0.5) else "")
    found.append(state())
    if op == "LSTM":
        found += [state(), weight(directions, 3 * hidden) if g.chance(0.3) else ""]
    return found


def _attributes(g: ProductGraph, op: str, directions: int, is_bounded: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if g.chance(0.25):
        found["clip"] = g.pick(0.3, 1.0, 5.0)
    if op == "GRU" and g.chance(0.5):
        found["linear_before_reset"] = 1
    if op == "LSTM" and g.chance(0.25):
        found["input_forget"] = 1
    if g.chance(0.3):
        count = _FUNCTIONS[op] * directions
        known = _BOUNDED if is_bounded else _BOUNDED + _UNBOUNDED
        found["activations"] = [g.pick(*known) for _ in range(count)]
        if op == "RNN" or g.chance(0.5):
            for name in ("activation_alpha", "activation_beta"):
                found[name] = [float(value) for value in g.random.uniform(0.1, 0.9, count)]
    return found
