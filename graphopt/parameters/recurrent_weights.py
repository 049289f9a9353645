"""Recurrent weights of PyTorch, as exporters combine them into the operands of LSTM, GRU and RNN.

``torch.nn.LSTM`` has four tensors for each layer and direction, with the gates in another order than ONNX.
Exporters reorder the gates, join the two biases, and stack the directions.

Sources: the ONNX operators LSTM, GRU and RNN; ``torch.nn.modules.rnn``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass

#: For each number of gates, the index in PyTorch of each gate of ONNX: i, o, f, c among i, f, c, o (LSTM),
#: z, r, h among r, z, h (GRU), and the only gate of an RNN.
_GATES = {4: (0, 3, 1, 2), 3: (1, 0, 2), 1: (0,)}
_INPUT_WEIGHT = re.compile(r"(?P<prefix>(.*\.)?)weight_ih_(?P<layer>l\d+)")


@dataclass(frozen=True)
class RecurrentName:
    """The tensors of a framework that form one operand of LSTM, GRU or RNN.

    Attributes:
        tensors: the names of the tensors of each direction, one after another.
        gates: the index, in the framework's tensors, of each gate of the operand.
        directions: the size of the operand's first axis.
    """

    tensors: tuple[str, ...]
    gates: tuple[int, ...]
    directions: int

    @property
    def name(self) -> str:
        return self.tensors[0]

    def to_json(self) -> dict[str, Any]:
        return {"tensors": [*self.tensors], "gates": [*self.gates], "directions": self.directions}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`; raises ValueError, TypeError or KeyError for other data."""
        tensors, gates = tuple(map(str, entry["tensors"])), tuple(map(int, entry["gates"]))
        directions = int(entry["directions"])
        if gates not in _GATES.values() or not tensors or directions < 1 or len(tensors) % directions:
            raise ValueError(f"{entry} is not the operand of a recurrent operator")
        return cls(tensors, gates, directions)

    def arrange(self, contents: Mapping[str, ir.TensorProtocol], weight: str) -> ir.TensorProtocol:
        """The operand, named ``weight``; raises UsageError if shapes or types do not fit together."""
        parts = [self._reordered(contents[name], name) for name in self.tensors]
        try:
            stacked = np.concatenate(parts).reshape(self.directions, -1, *parts[0].shape[1:])
        except ValueError as error:
            raise UsageError(
                f"{', '.join(self.tensors)} do not form {weight!r}: their shapes differ"
            ) from error
        return ir.Tensor(stacked, dtype=contents[self.name].dtype, name=weight)

    def _reordered(self, tensor: ir.TensorProtocol, name: str) -> np.ndarray[Any, Any]:
        array = tensor.numpy()
        if not array.ndim or len(array) % len(self.gates):
            raise UsageError(f"{name!r} is not a weight of {len(self.gates)} gates")
        gates = array.reshape(len(self.gates), -1, *array.shape[1:])
        return gates[list(self.gates)].reshape(array.shape)


def recurrent_names(contents: Mapping[str, ir.TensorProtocol]) -> Iterator[RecurrentName]:
    """The operands that exporters may build from each recurrent layer: W, R, B of one or two directions."""
    for name, tensor in contents.items():
        layer = _INPUT_WEIGHT.fullmatch(name)
        hidden = contents.get(name.replace("weight_ih_", "weight_hh_"))
        if layer is None or hidden is None or len(hidden.shape) != 2 or len(tensor.shape) != 2:
            continue
        rows, size = map(int, hidden.shape.numpy())
        gates = _GATES.get(rows // size) if size and not rows % size else None
        if gates is None:
            continue
        prefix, end = layer["prefix"], layer["layer"]
        for suffixes in ([end], [end, f"{end}_reverse"]):
            for kinds in (["weight_ih"], ["weight_hh"], ["bias_ih", "bias_hh"]):
                tensors = tuple(f"{prefix}{kind}_{suffix}" for suffix in suffixes for kind in kinds)
                if all(one in contents for one in tensors):
                    yield RecurrentName(tensors, gates, len(suffixes))
