"""Common parts of the gradients of LSTM, GRU and RNN: one direction, its slices and its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_since

#: An activation function: appends its nodes.
Function = Callable[[GraphBuilder, ir.Value], ir.Value]

#: The activation functions of runtimes, with default parameters; ``None`` where runtimes disagree.
_FUNCTIONS: dict[str, dict[str, float | None]] = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softsign": {},
    "Softplus": {},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": None},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Affine": {"alpha": None, "beta": None},
    "ScaledTanh": {"alpha": None, "beta": None},
}


class Direction:
    """One direction of an LSTM, GRU or RNN, with its slices of tensors that are stacked by direction.

    Tensors are ``[steps, batch, …]``; *rows* are ``[steps · batch, …]``.

    Attributes:
        op: appends nodes.
        node: the operator.
        backwards: whether the direction runs from the last step to the first.
        functions: its activation functions, which clip their operands.
        x: X as rows.
        y: the states after the steps.
        dy: their cotangents; ``None`` for zero.
        valid: whether a step is within its sequence, bool ``[steps, batch, 1]``; ``None`` if all are.
    """

    def __init__(self, op: GraphBuilder, node: PrimalNode, index: int, dy: ir.Value | None) -> None:
        self.op, self.node = op, node
        self._index = index
        self._directions = _directions(node)
        self.backwards = index == 1 or node.attribute("direction") == "reverse"
        self.functions = _functions(node, index)
        y = node.output(0)
        self._steps, self._batch = op.dim(y, 0), op.dim(y, 2)
        self._hidden: Size = node.attribute("hidden_size") or op.dim(y, 3)
        self.x = op.Flatten(node.x, axis=2)
        self.y = self.part(y, 1)
        self.valid = self._valid()
        self.dy = None if dy is None else self.part(dy, 1)
        if self.dy is not None and self.valid is not None:
            self.dy = op.only_where(self.valid, self.dy)

    # Parts ---------------------------------------------------------------------------------

    def part(self, value: ir.Value, axis: int = 0) -> ir.Value:
        """This direction's slice of ``value``, without the axis of directions."""
        if self._directions == 1:
            return self.op.Squeeze(value, [axis])
        return self.op.Gather(value, self.op.constant(np.array(self._index, np.int64)), axis=axis)

    def split(self, value: ir.Value, *counts: int, axis: int = -1) -> tuple[ir.Value, ...]:
        """``value`` split along ``axis`` into parts of ``counts`` times the hidden size."""
        if len(counts) == 1:
            return (value,)
        sizes = self.op.shape(*(self._times(count) for count in counts))
        return self.op.Split(value, sizes, axis=axis, outputs=len(counts))

    def _times(self, count: int) -> Size:
        return self._hidden * count if isinstance(self._hidden, int) else self.op.Mul(self._hidden, count)

    @cached_property
    def w(self) -> ir.Value:
        """``[gates · hidden, inputs]``."""
        return self.part(self.node.input(1))

    @cached_property
    def r(self) -> ir.Value:
        """``[gates · hidden, hidden]``."""
        return self.part(self.node.input(2))

    def biases(self, gates: int) -> tuple[ir.Value | None, ...]:
        """The biases of the products with W and with R."""
        given = self.node.optional(3)
        return (None, None) if given is None else self.split(self.part(given), gates, gates)

    def bias(self, gates: int) -> ir.Value | None:
        """The sum of both biases."""
        w, r = self.biases(gates)
        return None if w is None else self.op.Add(w, r)

    def peepholes(self) -> tuple[ir.Value, ...] | None:
        """The peephole weights of the input, output and forget gates, ``[hidden]`` each."""
        given = self.node.optional(7)
        return None if given is None else self.split(self.part(given), 1, 1, 1)

    @cached_property
    def zeros(self) -> ir.Value:
        """A state of zeros, ``[batch, hidden]``."""
        return self.op.ConstantOfShape(self._state_shape, value=np.zeros(1, self.op.dtype(self.y).numpy()))

    @cached_property
    def _state_shape(self) -> ir.Value:
        return self.op.shape(self._batch, self._hidden)

    def first(self, index: int) -> ir.Value:
        """The initial state ``[batch, hidden]`` of input ``index``."""
        given = self.node.optional(index)
        return self.zeros if given is None else self.op.Reshape(self.part(given), self._state_shape)

    def last(self, given: ir.Value | None) -> ir.Value:
        """The cotangent of the last state; zero for an empty sequence."""
        if given is None:
            return self.zeros
        op, own, lengths = self.op, self.part(given), self.node.optional(4)
        return own if lengths is None else op.only_where(op.Unsqueeze(op.Greater(lengths, 0), [1]), own)

    def _valid(self) -> ir.Value | None:
        op, lengths = self.op, self.node.optional(4)
        if lengths is None:
            return None
        if isinstance(self._steps, int):
            steps = op.constant(np.arange(self._steps).reshape(-1, 1))
        else:
            count = op.Squeeze(self._steps, [0])
            zero, one = op.constant(np.array(0)), op.constant(np.array(1))
            steps = op.Unsqueeze(op.Range(zero, count, one), [1])
        valid = op.Less(steps, op.cast(lengths, ir.DataType.INT64))
        return op.Reshape(valid, op.shape(self._steps, self._batch, 1))

    # Steps ---------------------------------------------------------------------------------

    @cached_property
    def h(self) -> ir.Value:
        """The states before the steps, as rows."""
        op, y = self.op, self.y
        first = op.Unsqueeze(self.first(5), [0])
        if not self.backwards:
            return op.Flatten(op.Concat(first, op.Slice(y, [0], [-1], [0]), axis=0), axis=2)
        if self.valid is not None:  # a backwards direction starts at the last valid step
            y = op.Where(self.valid, y, first)
        return op.Flatten(op.Concat(op.Slice(y, [1], [np.iinfo(np.int64).max], [0]), first, axis=0), axis=2)

    def stepwise(self, rows: ir.Value, gates: int = 1) -> ir.Value:
        """``rows`` as ``[steps, batch, gates · hidden]``."""
        return self.op.Reshape(rows, self.op.shape(self._steps, self._batch, self._times(gates)))

    def gates(self, rows: ir.Value, *counts: int) -> tuple[ir.Value, ...]:
        """``rows`` split into parts of ``counts`` gates, as ``[steps, batch, count · hidden]``."""
        return self.split(self.stepwise(rows, sum(counts)), *counts)

    def slopes(self, function: Callable[..., ir.Value], *inputs: ir.Value) -> tuple[ir.Value, list[Any]]:
        """An element-wise ``function`` of ``inputs`` of one shape, and its derivatives (``None`` for zero).

        The cotangent is a scalar 1: gradient rules of element-wise operators broadcast it.
        """
        op = _SameDims(self.op)
        mark = op.mark()
        copies = [op.Identity(value) for value in inputs]  # separate values: inputs may depend on each other
        result = function(op, *copies)
        found = vjp_since(op, mark, {result: op.number(1.0, result)}, copies)
        return result, [found.get(value) for value in copies]

    def concat_slopes(self, like: ir.Value, *slopes: ir.Value | None) -> ir.Value:
        """The derivatives by several gates, each of the shape of ``like``, concatenated."""
        op = self.op
        full = [op.expand_like(op.number(0.0, like) if slope is None else slope, like) for slope in slopes]
        return full[0] if len(full) == 1 else op.Concat(*full, axis=-1)

    def scan(
        self,
        step: Callable[..., tuple[Sequence[ir.Value], Sequence[ir.Value]]],
        states: Sequence[ir.Value],
        slices: Mapping[str, ir.Value | None],
        *,
        rows: int,
        against: bool = False,
    ) -> tuple[ir.Value, ...]:
        """The last states and the stacked results of a Scan over the steps.

        Args:
            step: writes the body, given its builder, the states, and the slices by name (``None`` where
                ``slices`` has ``None``); returns the next states and the results to stack.
            rows: the number of results to stack.
            against: run the steps in the opposite order.
        """
        op, edit = self.op, self.op.cx.edit
        given = {name: value for name, value in slices.items() if value is not None}
        carried = [_formal(op, state) for state in states]
        formals = {name: _formal(op, value, sliced=True) for name, value in given.items()}
        inner = op.begin_body(f"{op.prefix}_step", [*carried, *formals.values()])
        ends, stacked = step(inner, *carried, **{**dict.fromkeys(slices), **formals})
        body = inner.end_body([*ends, *stacked])
        for output in body.outputs:  # a Scan does not run without ranks
            edit.declare(output, op.dtype(self.y), [None, None])
        backwards = self.backwards != against
        results: tuple[ir.Value, ...] = op.Scan(
            *states,
            *given.values(),
            body=body,
            num_scan_inputs=len(given),
            scan_input_directions=[1] * len(given) if backwards else None,
            scan_output_directions=[1] * rows if backwards else None,
            outputs=len(states) + rows,
        )
        return results


class _SameDims(GraphBuilder):
    """A builder that never sums over axes: operands have the shape of results, even if it is unknown.

    It shares the records of ``op``, so that ``op`` can drop or move nodes created by this builder.
    """

    def __init__(self, op: GraphBuilder) -> None:
        super().__init__(op.cx, op.graph)
        vars(self).update(vars(op))

    def reduce_to(self, x: ir.Value, like: ir.Value, shaped_as: ir.Value | None = None) -> ir.Value:
        return x


def _formal(op: GraphBuilder, value: ir.Value, *, sliced: bool = False) -> ir.Value:
    """An input of a body, with the type and shape of ``value`` or of a slice of it."""
    formal = op.formal(f"{op.prefix}_in", ir.TensorType(op.dtype(value)))
    op.cx.facts.assume_like(formal, like=value, sliced=sliced)
    return formal


def _directions(node: PrimalNode) -> int:
    return 2 if node.attribute("direction") == "bidirectional" else 1


def by_direction(
    op: GraphBuilder,
    node: PrimalNode,
    direction: Callable[[Direction], Sequence[ir.Value | None]],
    dy: ir.Value | None,
) -> list[ir.Value | None]:
    """The gradients of all inputs, stacked from those of each direction."""
    if node.attribute("layout", 0):
        raise node.refusal("onnxruntime runs it with layout=0 only")
    found = [direction(Direction(op, node, index, dy)) for index in range(_directions(node))]
    dx, *parts = zip(*found, strict=True)
    results: list[ir.Value | None] = [op.reshape_like(dx[0] if len(dx) == 1 else op.Add(*dx), node.x)]
    for index, pieces in enumerate(parts, start=1):
        if pieces[0] is None or node.optional(index) is None:
            results.append(None)
            continue
        stacked = [op.Unsqueeze(piece, [0]) for piece in pieces]
        results.append(stacked[0] if len(stacked) == 1 else op.Concat(*stacked, axis=0))
    return results


def _functions(node: PrimalNode, index: int) -> list[Function]:
    """The activation functions of one direction, in the standard's order.

    The attributes alpha and beta list parameters only for functions with a parameter.
    """
    usual = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}[node.op_type]
    names = list(node.attribute("activations", None) or usual * _directions(node))
    numbers = {name: list(node.attribute(f"activation_{name}", ())) for name in ("alpha", "beta")}
    functions = []
    for position, name in enumerate(names):
        if name not in _FUNCTIONS:
            raise node.refusal(f"its activation function {name} is unknown")
        settings = {
            key: numbers[key].pop(0) if numbers[key] else default for key, default in _FUNCTIONS[name].items()
        }
        missing = [key for key, number in settings.items() if number is None]
        if missing:
            raise node.refusal(f"its {name} has no {missing[0]}")
        clips = position % len(usual) < 2  # onnxruntime does not clip c, the operand of the third function
        functions.append(_function(name, settings, node.attribute("clip") if clips else None))
    return functions[index * len(usual) : (index + 1) * len(usual)]


def _function(name: str, settings: Mapping[str, Any], clip: float | None) -> Function:
    def apply(op: GraphBuilder, x: ir.Value) -> ir.Value:
        if clip is not None:
            x = op.Clip(x, op.number(-clip, x), op.number(clip, x))
        if name == "Affine":
            return op.Add(op.Mul(x, settings["alpha"]), settings["beta"])
        if name == "ScaledTanh":
            return op.Mul(op.Tanh(op.Mul(x, settings["beta"])), settings["alpha"])
        return op.node(name, [x], settings)

    return apply
