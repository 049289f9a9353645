"""Nodes that clip gradients, accumulate them over steps, and update parameters and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphopt import ir
from graphopt.autodiff.body_gradient import as_output, declare
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.training.optimizers import Optimizer, ParameterStep
from graphopt.util.lazy_dataclass import dataclass

#: Added to the norm, as in torch.nn.utils.clip_grad_norm_.
_TINY = 1e-6


@dataclass(frozen=True)
class Update:
    """The update of parameters.

    Attributes:
        optimizer: the optimizer.
        clip_norm: the maximum global norm of the gradients; ``None`` for no limit.
        accumulate: the number of steps whose gradients are averaged for an update.
        decays: returns whether the parameter with a given name has weight decay.
    """

    optimizer: Optimizer
    clip_norm: float | None = None
    accumulate: int = 1
    decays: Callable[[str], bool] = lambda name: True

    @property
    def counter(self) -> str | None:
        """The name of the state that counts updates, an int64 scalar."""
        return f"{self.optimizer.name}.step" if self.optimizer.counts else None

    def slot(self, slot: str, parameter: str) -> str:
        """The name of the state ``slot`` of a parameter."""
        return f"{self.optimizer.name}.{slot}.{parameter}"

    @staticmethod
    def sum_of(parameter: str) -> str:
        """The name of the state with the accumulated gradient of a parameter."""
        return f"accumulate.sum.{parameter}"

    #: The name of the state that counts accumulated gradients, an int64 scalar.
    count = "accumulate.count"

    def zeros(self, parameters: Sequence[str]) -> dict[str, str | None]:
        """The parameter with the shape of each state, by the state's name; ``None`` for int64 scalars."""
        found: dict[str, str | None] = {}
        if self.counter is not None:
            found[self.counter] = None
        for slot in self.optimizer.slots:
            found |= {self.slot(slot, name): name for name in parameters}
        if self.accumulate > 1:
            found[self.count] = None
            found |= {self.sum_of(name): name for name in parameters}
        return found

    def write(
        self,
        op: GraphBuilder,
        rate: ir.Value,
        parameters: Mapping[str, ir.Value],
        gradients: Mapping[str, ir.Value],
        state: Mapping[str, ir.Value],
    ) -> dict[str, ir.Value]:
        """Write the nodes; returns the next values of parameters and state by name."""

        def updated(op: GraphBuilder, gradients: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
            op.prefix, new, step = self.optimizer.name, {}, None
            if self.counter is not None:
                step = new[self.counter] = op.Add(state[self.counter], 1)
            shared = self.optimizer.shared(op, rate, step)
            if self.clip_norm is not None:
                gradients = clipped(op, gradients, self.clip_norm)
            for name, parameter in parameters.items():
                op.prefix = f"{self.optimizer.name}.{name}"
                names = [self.slot(slot, name) for slot in self.optimizer.slots]
                decay = self.optimizer.weight_decay if self.decays(name) else 0.0
                slots = [state[slot] for slot in names]
                at = ParameterStep(parameter, gradients[name], slots, decay)
                found = self.optimizer.update(op, shared, at)
                new |= dict(zip([name, *names], found, strict=True))
            return new

        if self.accumulate == 1:
            return updated(op, gradients)
        # an If, so that a step without an update only adds to the sums: one pass over memory instead of
        # twelve
        op.prefix = "accumulate"
        count = op.Add(state[self.count], 1)
        full = op.Equal(count, self.accumulate)
        like = {**{name: value for name, value in state.items() if name != self.count}, **parameters}
        sums = {name: state[self.sum_of(name)] for name in parameters}

        def update(inner: GraphBuilder) -> dict[str, ir.Value]:
            mean = {
                name: inner.Mul(inner.Add(total, gradients[name]), 1 / self.accumulate)
                for name, total in sums.items()
            }
            zeros = {self.sum_of(name): inner.zeros_like(total) for name, total in sums.items()}
            return {**updated(inner, mean), **zeros}

        def add(inner: GraphBuilder) -> dict[str, ir.Value]:
            added = {self.sum_of(name): inner.Add(total, gradients[name]) for name, total in sums.items()}
            return {**like, **added}

        bodies = {
            name: _branch(op.begin_body(f"accumulate_{name}"), write, like)
            for name, write in (("then_branch", update), ("else_branch", add))
        }
        made = op.multi_output_node("If", [full], bodies, outputs=len(like))
        new = dict(zip(like, made, strict=True))  # at least a parameter and its sum are returned
        new[self.count] = op.Where(full, np.int64(0), count)
        return new


def clipped(op: GraphBuilder, gradients: Mapping[str, ir.Value], largest: float) -> dict[str, ir.Value]:
    """Gradients scaled to a global norm of at most ``largest``.

    As ``torch.nn.utils.clip_grad_norm_``; the norm is computed in float32.
    """
    op.prefix = "clip"
    squares = [
        op.ReduceSumSquare(op.cast(gradient, ir.DataType.FLOAT), keepdims=0)
        for gradient in gradients.values()
    ]
    norm = op.Sqrt(squares[0] if len(squares) == 1 else op.Sum(*squares))
    factor = op.Min(op.Div(np.float32(largest), op.Add(norm, np.float32(_TINY))), np.float32(1))
    return {name: op.Mul(gradient, op.cast_like(factor, gradient)) for name, gradient in gradients.items()}


def _branch(
    op: GraphBuilder,
    write: Callable[[GraphBuilder], Mapping[str, ir.Value]],
    like: Mapping[str, ir.Value],
) -> ir.Graph:
    """The finished branch of ``op``, which returns the values of ``write`` in the order of ``like``."""
    found = write(op)
    for name, value in like.items():
        output = as_output(op, found[name], op.graph)
        declare(op, output, value)
        op.cx.edit.add_output(op.graph, output)
    op.drop_constants()
    return op.end_body(op.graph.outputs)
