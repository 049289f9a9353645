"""LSTM, GRU and RNN: compared with torch's modules, or with loops over the steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

#: Gates by operator, and the positions of torch's gates among them.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
#: Names of inputs, in the order of the operators; only LSTM has the last two.
_INPUTS = ("x", "w", "r", "b", "lens", "h0", "c0", "p")
_LSTM_ALONE = ("c0", "p", "c")
_DIRECTIONS = ("forward", "reverse", "bidirectional")
#: Activation functions, with tested values of alpha and beta.
_FUNCTIONS: dict[str, tuple[float | None, float | None]] = {
    "Sigmoid": (None, None),
    "Tanh": (None, None),
    "Relu": (None, None),
    "Softsign": (None, None),
    "Softplus": (None, None),
    "Affine": (0.5, 0.25),
    "LeakyRelu": (0.125, None),
    "ThresholdedRelu": (0.125, None),
    "ScaledTanh": (0.75, 0.5),
    "HardSigmoid": (0.5, 0.375),
    "Elu": (0.75, None),
}


def cases() -> Iterator[Case]:
    """All cases of torch's modules, then combinations of inputs, outputs and attributes."""
    size = (5, 3, 4, 6)
    for op, direction in itertools.product(_GATES, _DIRECTIONS):
        after = {"linear_before_reset": 1} if op == "GRU" else {}
        for other in (size, (1, 2, 3, 5), (7, 1, 5, 3)):
            yield Recurrent(op, direction, other, "x w r b h0 c0", attributes=after).case(_by_module)
        yield Recurrent(op, direction, size, "x w r b h0 c0 lens", attributes=after).case(_by_module)
        for given in ("x w r", "x w r b", "x w r h0", "x w r b lens", "x w r b lens h0 c0 p"):
            yield Recurrent(op, direction, size, given).case(_by_steps)
        for outputs in ("y", "h", "c", "hc", "yc") if op == "LSTM" else ("y", "h"):
            yield Recurrent(op, direction, size, "x w r b lens h0", outputs).case(_by_steps)
        for attributes in _attributes(op, direction):
            yield Recurrent(op, direction, size, "x w r b p", attributes=attributes).case(_by_steps)
    relu = {"activations": ("Relu",)}
    yield Recurrent("RNN", "forward", size, "x w r b h0", attributes=relu).case(_by_module)


def _attributes(op: str, direction: str) -> Iterator[dict[str, Any]]:
    """Combinations of attributes; each activation function at each position of the last direction."""
    yield {"clip": 0.5}
    for name in {"LSTM": ["input_forget"], "GRU": ["linear_before_reset"], "RNN": []}[op]:
        yield {name: 1}
        yield {name: 1, "clip": 0.5}
    if direction == "reverse":
        return
    usual = _ACTIVATIONS[op]
    for place, (name, numbers) in itertools.product(range(len(usual)), _FUNCTIONS.items()):
        names = list(usual if direction == "forward" else usual * 2)
        names[place - len(usual)] = name
        found = dict(zip(("activation_alpha", "activation_beta"), numbers, strict=True))
        told = {key: (number,) for key, number in found.items() if number is not None}
        yield {"activations": tuple(names), **told}


@dataclass(frozen=True)
class Recurrent:
    """An operator with attributes.

    Attributes:
        size: steps, batch, inputs, hidden.
        given: names of its inputs; names that the operator lacks are ignored.
        outputs: letters of the outputs that are read.
    """

    op: str
    direction: str
    size: tuple[int, int, int, int]
    given: str
    outputs: str = "yhc"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def case(self, torch: Callable[[Recurrent, Mapping[str, Any]], Mapping[str, Any]]) -> Case:
        """The test case; ``torch`` computes the expected results by name."""
        names, read = self._own(_INPUTS, self.given.split()), self._own("yhc", self.outputs)

        def function(*tensors: Any) -> tuple[Any, ...]:
            found = torch(self, dict(zip(names, tensors, strict=True)))
            return tuple(found[name] for name in read)

        return Case(self._label(names, read), self._text(names, read), self._feeds(names), function)

    def _own(self, names: Iterable[str], wanted: Container[str]) -> list[str]:
        alone = () if self.op == "LSTM" else _LSTM_ALONE
        return [name for name in names if name in wanted and name not in alone]

    def _label(self, names: Sequence[str], read: Sequence[str]) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.op} {self.direction} {self.size} {','.join(names)} to {','.join(read)} {told}".strip()

    def _text(self, names: Sequence[str], read: Sequence[str]) -> str:
        dims = {
            "x": "T,B,I", "w": "D,G,I", "r": "D,G,H", "b": "D,K", "lens": "B",
            "h0": "D,B,H", "c0": "D,B,H", "p": "D,Q", "y": "T,D,B,H", "h": "D,B,H", "c": "D,B,H",
        }  # fmt: skip
        inputs = ", ".join(f"{'int32' if name == 'lens' else 'float'}[{dims[name]}] {name}" for name in names)
        outputs = ", ".join(f"float[{dims[name]}] {name}" for name in read)
        settings = {"hidden_size": self.size[3], "direction": self.direction, **self.attributes}
        attributes = ", ".join(f"{name}={_spelt(value)}" for name, value in settings.items())
        last = max(_INPUTS.index(name) for name in names)
        operands = ", ".join(name if name in names else "" for name in _INPUTS[: last + 1])
        results = ", ".join(name if name in read else "" for name in "yhc"[: "yhc".index(read[-1]) + 1])
        return f"m ({inputs}) => ({outputs}) {{ {results} = {self.op}<{attributes}>({operands}) }}"

    def _feeds(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        random = np.random.default_rng(1)
        steps, batch, inputs, hidden = self.size
        d, g = self.directions, _GATES[self.op] * hidden
        shapes = {
            "x": (steps, batch, inputs), "w": (d, g, inputs), "r": (d, g, hidden), "b": (d, 2 * g),
            "h0": (d, batch, hidden), "c0": (d, batch, hidden), "p": (d, 3 * hidden),
        }  # fmt: skip
        lengths = np.array([max(steps - 2 * index, 1) for index in range(batch)][::-1], np.int32)
        return {
            name: lengths
            if name == "lens"
            else np.asarray(0.6 * random.standard_normal(shapes[name])).astype(np.float32)
            for name in names
        }


def _spelt(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_spelt, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _by_module(this: Recurrent, given: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a torch module, called with the weights."""
    import torch

    _, batch, inputs, hidden = this.size
    settings = {"nonlinearity": "relu"} if this.attributes.get("activations") == ("Relu",) else {}
    kind = getattr(torch.nn, this.op)
    module = kind(inputs, hidden, bidirectional=this.directions == 2, **settings).double()
    weights = {}
    for index in range(this.directions):
        suffix = "_l0_reverse" if index else "_l0"
        for name, value in zip(
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), _parts(this, given, index), strict=True
        ):
            parts = value.split(hidden)
            weights[name + suffix] = torch.cat([parts[place] for place in _ORDER[this.op]])
    x = given["x"]
    lengths = given.get("lens", torch.full((batch,), len(x)))
    backwards = this.direction == "reverse"
    x = _reversed(x, lengths) if backwards else x
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    start = (given["h0"], given["c0"]) if this.op == "LSTM" else given["h0"]
    rows, last = torch.func.functional_call(module, weights, (packed, start))
    y: Any
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(rows, total_length=len(x))
    y = y.unflatten(2, (this.directions, hidden)).transpose(1, 2)
    h, c = last if this.op == "LSTM" else (last, None)
    return {"y": _reversed(y.transpose(1, 2), lengths).transpose(1, 2) if backwards else y, "h": h, "c": c}


def _reversed(x: Any, lengths: Any) -> Any:
    """Each sequence of x [steps, batch, …] reversed; padding is kept."""
    import torch

    columns = []
    for index, length in enumerate(lengths.tolist()):
        columns.append(torch.cat([x[:length, index].flip(0), x[length:, index]]))
    return torch.stack(columns, 1)


def _parts(this: Recurrent, given: Mapping[str, Any], index: int) -> tuple[Any, Any, Any, Any]:
    """W, R and both biases of one direction."""
    import torch

    w, r = given["w"][index], given["r"][index]
    b = given["b"][index] if "b" in given else torch.zeros(2 * len(w), dtype=w.dtype)
    return w, r, *b.split(len(w))


def _by_steps(this: Recurrent, given: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a loop over the steps, by the formulas of the standard."""
    import torch

    directions = [_one_direction(this, given, index) for index in range(this.directions)]
    y, h, c = ([found[part] for found in directions] for part in range(3))
    return {"y": torch.stack(y, 1), "h": torch.stack(h), "c": torch.stack(c)}


def _one_direction(this: Recurrent, given: Mapping[str, Any], index: int) -> tuple[Any, Any, Any]:
    import torch

    steps, batch, _, hidden = this.size
    step = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[this.op](this, given, index)
    zeros = torch.zeros(batch, hidden, dtype=given["x"].dtype)
    h, c = (given[name][index] if name in given else zeros for name in ("h0", "c0"))
    lengths = given.get("lens", torch.full((batch,), steps))
    rows = [zeros] * steps
    backwards = this.direction == "reverse" or index == 1
    for t in reversed(range(steps)) if backwards else range(steps):
        valid = (lengths > t)[:, None]
        h_new, c_new = step(given["x"][t], h, c)
        h, c = torch.where(valid, h_new, h), torch.where(valid, c_new, c)
        rows[t] = torch.where(valid, h, zeros)
    return torch.stack(rows), h, c


def _lstm(this: Recurrent, given: Mapping[str, Any], index: int) -> Callable[..., Any]:
    w, r, wb, rb = _parts(this, given, index)
    f, g, act = _functions(this, index)
    p = given["p"][index].split(this.size[3]) if "p" in given else (0.0, 0.0, 0.0)
    clip = _clip(this)

    def step(x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        i, o, forget, new = (x @ w.T + h @ r.T + wb + rb).chunk(4, 1)
        i = f(clip(i + p[0] * c))
        forget = 1 - i if this.attributes.get("input_forget") else f(clip(forget + p[2] * c))
        c = forget * c + i * g(clip(new))
        return f(clip(o + p[1] * c)) * act(c), c

    return step


def _gru(this: Recurrent, given: Mapping[str, Any], index: int) -> Callable[..., Any]:
    w, r, wb, rb = (part.chunk(3) for part in _parts(this, given, index))
    f, g = _functions(this, index)
    clip = _clip(this)

    def step(x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        z, reset = (f(clip(x @ w[k].T + h @ r[k].T + wb[k] + rb[k])) for k in (0, 1))
        if this.attributes.get("linear_before_reset"):
            new = x @ w[2].T + wb[2] + reset * (h @ r[2].T + rb[2])
        else:
            new = x @ w[2].T + wb[2] + (reset * h) @ r[2].T + rb[2]
        return (1 - z) * g(clip(new)) + z * h, c

    return step


def _rnn(this: Recurrent, given: Mapping[str, Any], index: int) -> Callable[..., Any]:
    w, r, wb, rb = _parts(this, given, index)
    (f,) = _functions(this, index)
    clip = _clip(this)
    return lambda x, h, c: (f(clip(x @ w.T + h @ r.T + wb + rb)), c)


def _clip(this: Recurrent) -> Callable[[Any], Any]:
    bound = this.attributes.get("clip")
    return (lambda x: x) if bound is None else (lambda x: x.clip(-bound, bound))


def _functions(this: Recurrent, index: int) -> list[Callable[[Any], Any]]:
    """The activation functions of one direction."""
    import torch
    from torch.nn import functional

    (a,), (b,) = (this.attributes.get(f"activation_{name}", (None,)) for name in ("alpha", "beta"))
    known: dict[str, Callable[[Any], Any]] = {
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "Relu": torch.relu,
        "Softsign": functional.softsign,
        "Softplus": functional.softplus,
        "Affine": lambda x: a * x + b,
        "LeakyRelu": partial(functional.leaky_relu, negative_slope=a),
        "ThresholdedRelu": partial(functional.threshold, threshold=a, value=0.0),
        "ScaledTanh": lambda x: a * torch.tanh(b * x),
        "HardSigmoid": lambda x: (a * x + b).clip(0, 1),
        "Elu": partial(functional.elu, alpha=a),
    }
    usual = _ACTIVATIONS[this.op]
    names = this.attributes.get("activations", usual * this.directions)
    return [known[name] for name in names[index * len(usual) : (index + 1) * len(usual)]]
