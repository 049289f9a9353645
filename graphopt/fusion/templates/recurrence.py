"""LSTM, GRU and RNN with packed weights.

https://onnx.ai/onnx/operators/onnx__LSTM.html. The parameters follow onnxruntime (1.31), also where it
differs from the standard: activations without ``activation_alpha`` have its defaults, and gates with a bias
turn NaN into numbers (``core/providers/cpu/rnn``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.util.lazy_dataclass import dataclass

#: Inputs, and gates, activations and attributes of each operator.
_INPUTS = {"LSTM": 8, "GRU": 6, "RNN": 6}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
#: Whether an activation has the parameters alpha and beta, and onnxruntime's defaults of LSTM and GRU.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "softsign": (None, None),
    "softplus": (None, None),
    "affine": (0.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (0.0, None),
    "scaledtanh": (0.0, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}
_X, _W, _R, _LENGTHS = 0, 1, 2, 4
#: Ranks of the inputs.
_RANKS = (3, 3, 3, 2, 1, 3, 3, 2)
_FLOAT_MAX = 3.4028234663852886e38
#: Recurrent weights of a direction that one thread multiplies as fast as several threads.
_MOST_WEIGHTS = 2**18
#: Units up to which LSTM is faster for batches of several rows.
_FEW_UNITS = 64


@dataclass(frozen=True)
class Activation:
    """An activation function, in lower case, with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class RecurrenceParameters:
    """Static parameters.

    Attributes:
        op: LSTM, GRU or RNN.
        hidden: number of units.
        reverse: whether the only direction runs from the last step to the first.
        activations: of each direction.
        clip: bound of the operands of activations; infinite for none.
        linear: ``linear_before_reset`` of GRU.
        coupled: ``input_forget`` of LSTM.
    """

    op: str
    hidden: int
    reverse: bool
    activations: tuple[tuple[Activation, ...], ...]
    clip: float
    linear: bool = False
    coupled: bool = False

    @property
    def directions(self) -> int:
        """Number of directions."""
        return len(self.activations)

    @property
    def gates(self) -> int:
        """Number of gates."""
        return GATES[self.op]


def _is_faster(match: Match, cx: Context) -> bool:
    """Whether weights are packed once per session, and the kernel was faster at such sizes.

    Relative to onnxruntime 1.31 with AVX-512, the kernel takes 0.71 to 0.83 times the time for LSTM of one
    row, 0.63 to 0.82 for GRU and 0.3 to 0.6 for RNN. LSTM of several rows and many units runs near the peak
    in both, and onnxruntime divides two or three rows of one direction between threads.
    """
    parameters, x = match.parameters, match.operands[_X]
    if any(ir.constant_of(match.operands[index]) is None for index in (_W, _R)):
        return False
    if parameters.gates * parameters.hidden**2 > _MOST_WEIGHTS:
        return False
    shape = cx.shape(x)
    rows = shape[1] if shape is not None and isinstance(shape[1], int) else 1
    if parameters.op == "LSTM":
        return rows == 1 or parameters.hidden <= _FEW_UNITS
    return parameters.op == "RNN" or parameters.directions == 2 or rows not in (2, 3)


@template("LSTM", "GRU", "RNN", is_faster=_is_faster)
def recurrence(anchor: ir.Node, cx: Context) -> Match:
    """A recurrent operator with sequences on the first axis (``layout`` 0)."""
    op = anchor.op_type
    inputs: list[ir.Value | None] = [*anchor.inputs, *[None] * _INPUTS[op]][: _INPUTS[op]]
    operands = [value if value is not None and value.name else None for value in inputs]
    for index, value in enumerate(operands):
        if value is None:
            if index <= _R:
                raise CantFuse(f"{op} lacks an input")
            continue
        expected = ir.DataType.INT32 if index == _LENGTHS else ir.DataType.FLOAT
        if cx.dtype(value) != expected:
            raise CantFuse(f"onnxruntime computes {op} of floats alone")
        if cx.shape(value) is None:
            raise CantFuse(f"the rank of {value.name!r} is unknown")
        if cx.rank(value) != _RANKS[index]:
            raise CantFuse(f"the rank of {value.name!r} is wrong")
    return Match(
        "recurrence", (anchor,), tuple(operands), tuple(anchor.outputs), _parameters(anchor, operands, cx)
    )


def _parameters(node: ir.Node, operands: Sequence[ir.Value | None], cx: Context) -> RecurrenceParameters:
    direction = _text(node, "direction", "forward").lower()
    if direction not in ("forward", "reverse", "bidirectional"):
        raise CantFuse("its direction is unknown")
    if _integer(node, "layout"):
        raise CantFuse("onnxruntime has no recurrences with the batch on the first axis")
    hidden = _integer(node, "hidden_size")
    if hidden <= 0:
        raise CantFuse("it has no attribute hidden_size")
    directions = 2 if direction == "bidirectional" else 1
    return RecurrenceParameters(
        node.op_type,
        hidden,
        direction == "reverse",
        _activations(node, directions),
        _clip(node),
        bool(_integer(node, "linear_before_reset")) and node.op_type == "GRU",
        bool(_integer(node, "input_forget")) and node.op_type == "LSTM",
    )


def _activations(node: ir.Node, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """The activations of each direction."""
    defaults = _FUNCTIONS[node.op_type]
    count, is_rnn = len(defaults), node.op_type == "RNN"
    names = _texts(node, "activations") or [*defaults] * directions
    if is_rnn:  # the default of the standard has two names
        names = names[:directions]
    if len(names) != count * directions or any(name.lower() not in _PARAMETERS for name in names):
        raise CantFuse("its activations are unknown")
    alphas, betas = _floats(node, "activation_alpha"), _floats(node, "activation_beta")
    found = (_rnn_activations if is_rnn else _consume)([name.lower() for name in names], alphas, betas)
    return tuple(tuple(found[first : first + count]) for first in range(0, len(found), count))


def _consume(names: Sequence[str], alphas: list[float], betas: list[float]) -> list[Activation]:
    """Activations that take parameters in order; the others take none."""
    found = []
    for name in names:
        alpha, beta = _PARAMETERS[name]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        found.append(Activation(name, alpha or 0.0, beta or 0.0))
    return found


def _rnn_activations(names: Sequence[str], alphas: list[float], betas: list[float]) -> list[Activation]:
    """Activations of RNN, whose parameters are 0 by default, and have one number for each direction.

    onnxruntime nevertheless assigns the numbers in order to the activations that have parameters.
    """
    alphas, betas = alphas or [0.0] * len(names), betas or [0.0] * len(names)
    if len(alphas) < len(names) or len(betas) < len(names):
        raise CantFuse("it lacks parameters of activations")
    return _consume(names, alphas, betas)


def _clip(node: ir.Node) -> float:
    clip = _attribute(node, "clip")
    if node.op_type == "RNN":
        return inf if clip is None or clip.as_float() < 0 else clip.as_float()
    found = _FLOAT_MAX if clip is None else clip.as_float()
    if not found > 0:
        raise CantFuse("onnxruntime rejects its attribute clip")
    return found


def _attribute(node: ir.Node, name: str) -> ir.Attr | None:
    found = node.attributes.get(name)
    if found is not None and found.is_ref():
        raise CantFuse("its attributes are those of a function")
    return found


def _text(node: ir.Node, name: str, default: str) -> str:
    found = _attribute(node, name)
    return default if found is None else found.as_string()


def _texts(node: ir.Node, name: str) -> list[str]:
    found = _attribute(node, name)
    return [] if found is None else list(found.as_strings())


def _floats(node: ir.Node, name: str) -> list[float]:
    found = _attribute(node, name)
    return [] if found is None else list(found.as_floats())


def _integer(node: ir.Node, name: str) -> int:
    found = _attribute(node, name)
    return 0 if found is None else found.as_int()
