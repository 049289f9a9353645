"""Models of one LSTM, GRU or RNN, and their results in double precision by the formulas of the standard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

#: Activations of x with the parameters a and b.
FUNCTIONS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * (np.exp(x) - 1)),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.log(1 + np.exp(x)),
}


@dataclass(frozen=True)
class Case:
    """A recurrent operator.

    Attributes:
        shape: steps, batch, inputs, hidden size.
        given: optional inputs: ``B``, ``lens``, ``h``, ``c`` and ``P``.
        outputs: the outputs that the model returns, of Y, Y_h and Y_c.
        attributes: attributes of the node; activations with ``activation_alpha`` and ``activation_beta``.
        fixed: whether W, R and B are constants.
        tail: nodes after the operator, as a function of Y's name.
    """

    op: str
    shape: tuple[int, int, int, int]
    direction: str = "forward"
    given: tuple[str, ...] = ("B",)
    outputs: tuple[str, ...] = ("Y", "Y_h", "Y_c")
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fixed: bool = True
    static: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def __str__(self) -> str:
        words = [self.op, "x".join(map(str, self.shape)), self.direction, *self.given]
        words += [f"{key}={value}" for key, value in self.attributes.items()]
        return "-".join(words + ["computed"] * (not self.fixed)).replace(" ", "")

    def tensors(self, seed: int = 0) -> dict[str, np.ndarray]:
        """All inputs."""
        random = np.random.default_rng(seed)
        steps, batch, inputs, hidden = self.shape
        gates, directions = GATES[self.op], self.directions

        def normal(*shape: int) -> np.ndarray:
            return random.normal(0, 1 / np.sqrt(max(shape[-1], 1)), shape).astype(np.float32)

        found = {
            "X": random.normal(0, 1, (steps, batch, inputs)).astype(np.float32),
            "W": normal(directions, gates * hidden, inputs),
            "R": normal(directions, gates * hidden, hidden),
            "B": random.normal(0, 0.3, (directions, 2 * gates * hidden)).astype(np.float32),
            "lens": random.integers(1, steps + 1, batch).astype(np.int32)
            if steps
            else np.zeros(batch, np.int32),
            "h": normal(directions, batch, hidden),
            "c": normal(directions, batch, hidden),
            "P": random.normal(0, 0.3, (directions, 3 * hidden)).astype(np.float32),
        }
        if batch > 2 and steps:
            found["lens"][1] = 0
        return {name: value for name, value in found.items() if name in ("X", "W", "R", *self.given)}

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model, and its inputs."""
        tensors = self.tensors()
        order = ["X", "W", "R", "B", "lens", "h", "c", "P"][: 8 if self.op == "LSTM" else 6]
        names = [name if name in tensors else "" for name in order]
        while not names[-1]:
            names.pop()
        outputs = [name if name in self.outputs else "" for name in ("Y", "Y_h", "Y_c")]
        outputs = outputs[: 3 if self.op == "LSTM" else 2]
        while not outputs[-1]:
            outputs.pop()
        node = helper.make_node(
            self.op, names, outputs, direction=self.direction, hidden_size=self.shape[3], **self.attributes
        )
        weights = {name: tensors[name] for name in ("W", "R", "B") if name in tensors and self.fixed}
        feeds = {name: value for name, value in tensors.items() if name not in weights}
        dims = {"X": ["S", "N", self.shape[2]], "lens": ["N"], "h": [self.directions, "N", self.shape[3]]}
        dims["c"] = dims["h"]
        inputs = [
            helper.make_tensor_value_info(
                name,
                TensorProto.INT32 if name == "lens" else TensorProto.FLOAT,
                value.shape if self.static else dims.get(name, value.shape),
            )
            for name, value in feeds.items()
        ]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
        graph = helper.make_graph(
            [node],
            "g",
            inputs,
            results,
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        return (
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
            feeds,
        )

    def expected(self, tensors: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in double precision."""
        parts = [self._direction(tensors, number) for number in range(self.directions)]
        y, h, c = (
            np.stack(found, axis) for found, axis in zip(zip(*parts, strict=True), (1, 0, 0), strict=True)
        )
        all_ = {"Y": y, "Y_h": h} | ({"Y_c": c} if self.op == "LSTM" else {})
        return [value for name, value in all_.items() if name in self.outputs]

    def _direction(self, tensors: Mapping[str, np.ndarray], number: int) -> tuple[np.ndarray, ...]:
        steps, batch, _, hidden = self.shape
        t = {name: value.astype(np.float64) for name, value in tensors.items()}
        own = {name: t[name][number] for name in t if name not in ("X", "lens")}
        bias = own.get("B", np.zeros(2 * GATES[self.op] * hidden))
        y = np.zeros((steps, batch, hidden))
        h_last, c_last = np.zeros((batch, hidden)), np.zeros((batch, hidden))
        backward = self.direction == "reverse" or number == 1
        for row in range(batch):
            length = int(t["lens"][row]) if "lens" in t else steps
            h = own["h"][row] if "h" in own else np.zeros(hidden)
            c = own["c"][row] if "c" in own else np.zeros(hidden)
            if length == 0:
                continue
            for step in range(length):
                time = length - 1 - step if backward else step
                h, c = self._step(t["X"][time, row], h, c, own, bias, number)
                y[time, row] = h
            h_last[row], c_last[row] = h, c
        return y, h_last, c_last

    def _step(
        self,
        x: np.ndarray,
        h: np.ndarray,
        c: np.ndarray,
        own: dict[str, np.ndarray],
        bias: np.ndarray,
        number: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        gates, hidden, clip = GATES[self.op], self.shape[3], self.attributes.get("clip", np.inf)
        functions = self._functions(number)

        def call(place: int, value: np.ndarray) -> np.ndarray:
            function, a, b = functions[place]
            return function(np.clip(value, -clip, clip), a, b)

        inputs = (own["W"] @ x).reshape(gates, hidden) + bias[: gates * hidden].reshape(gates, hidden)
        rest = bias[gates * hidden :].reshape(gates, hidden)
        r = own["R"].reshape(gates, hidden, hidden)
        if self.op == "RNN":
            return call(0, inputs[0] + r[0] @ h + rest[0]), c
        if self.op == "GRU":
            z, reset = (call(0, inputs[k] + r[k] @ h + rest[k]) for k in (0, 1))
            if self.attributes.get("linear_before_reset"):
                new = call(1, inputs[2] + reset * (r[2] @ h + rest[2]))
            else:
                new = call(1, inputs[2] + r[2] @ (reset * h) + rest[2])
            return (1 - z) * new + z * h, c
        i, o, f, g = (inputs[k] + r[k] @ h + rest[k] for k in range(4))
        p = own.get("P", np.zeros(3 * hidden)).reshape(3, hidden)
        i = call(0, i + p[0] * c)
        f = 1 - i if self.attributes.get("input_forget") else call(0, f + p[2] * c)
        c = f * c + i * call(1, g)
        function, a, b = functions[2]
        return call(0, o + p[1] * c) * function(c, a, b), c

    def _functions(self, number: int) -> list[tuple[Callable[..., np.ndarray], float, float]]:
        defaults = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[self.op]
        names = self.attributes.get("activations", defaults * self.directions)
        alphas = [*self.attributes.get("activation_alpha", ())]
        betas = [*self.attributes.get("activation_beta", ())]
        found = []
        for name in names:
            a = alphas.pop(0) if alphas and name in _WITH_ALPHA else _ALPHA.get(name, 0)
            b = betas.pop(0) if betas and name in _WITH_BETA else _BETA.get(name, 0)
            found.append((FUNCTIONS[name], a, b))
        return found[number * len(defaults) :][: len(defaults)]


_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
_ALPHA = {"LeakyRelu": 0.01, "HardSigmoid": 0.2, "Elu": 1.0}
_BETA = {"HardSigmoid": 0.5}
