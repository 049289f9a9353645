"""The shapes of outputs before a run, as functions of the shapes of the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphopt import ir
from graphopt.analysis.symbolic import Dim, Symbol, lone_atom, substitute
from graphopt.context.context import context_for
from graphopt.model_arguments import copy

Shape = tuple[int, ...]


class OutputShapes:
    """Computes the shapes of some outputs of a model from those of its inputs.

    Args:
        model: the model.
        outputs: the names of the outputs; names that the model lacks are ignored.
    """

    def __init__(self, model: ir.Model, outputs: Iterable[str]) -> None:
        names = set(outputs)
        copied = copy(model)
        with context_for(copied) as cx:
            self._outputs = {
                value.name or "": cx.shape(value) for value in copied.graph.outputs if value.name in names
            }
            self._symbols = [
                (value.name or "", axis, atom.name)
                for value in copied.graph.inputs
                for axis, dim in enumerate(cx.shape(value) or ())
                if isinstance(atom := lone_atom(dim), Symbol)
            ]

    def of(self, inputs: Mapping[str, Shape]) -> dict[str, Shape | None]:
        """The shape of each output, by name; ``None`` if the shapes of the inputs do not determine it."""
        sizes: dict[str, Dim] = {}
        for name, axis, symbol in self._symbols:
            shape = inputs.get(name)
            if shape is None:
                continue
            if axis >= len(shape) or sizes.setdefault(symbol, shape[axis]) != shape[axis]:
                return dict.fromkeys(self._outputs)  # onnxruntime refuses the inputs, or broadcasts them
        return {name: _sizes(dims, sizes) for name, dims in self._outputs.items()}


def _sizes(dims: tuple[Dim, ...] | None, sizes: Mapping[str, Dim]) -> Shape | None:
    if dims is None:
        return None
    try:
        return ir.all_ints(tuple(substitute(dim, sizes) for dim in dims))
    except ZeroDivisionError:
        return None
