"""Declared dims."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import with_bodies

ANONYMOUS_DIMS = frozenset({None, "", "?", "*", "-1", "None"})
"""Names that exporters use for unknown dims. Dims with these names are unrelated."""


def unnamed_dim(owner: str | None, axis: int) -> str:
    """The name of an anonymous dim in messages and for ``--dim``: ``x@0``."""
    return f"{owner}@{axis}"


def fresh_dim(hint: str, taken: Container[str]) -> str:
    """A symbol that is not in ``taken``: ``hint``, or ``hint_1`` and so on."""
    names = itertools.chain([hint], (f"{hint}_{count}" for count in itertools.count(1)))
    return next(name for name in names if name not in taken)


def all_ints(dims: Sequence[object] | None) -> tuple[int, ...] | None:
    """``dims`` if all are numbers; otherwise ``None``."""
    if dims is None:
        return None
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if len(numbers) == len(dims) else None


def declared_values(model: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    """The values of the main graph and its bodies with a declared shape."""
    for graph in with_bodies(model.graph):
        for value in graph.inputs:
            if value.shape is not None:
                yield value
        for node in graph:
            for value in node.outputs:
                if value.shape is not None:
                    yield value


def declare_dim(value: onnx_ir.Value, axis: int, size: int | str) -> None:
    """Declare dim ``axis`` of ``value`` as ``size``, before any facts about the model are inferred.

    ``size`` is a number, or the name of a dynamic dim.
    """
    assert value.shape is not None
    value.shape = onnx_ir.Shape([size if index == axis else dim for index, dim in enumerate(value.shape)])
