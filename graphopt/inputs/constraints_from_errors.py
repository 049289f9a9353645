"""Derive constraints between sizes from onnxruntime's error messages.

A message contains the name of a node and often numbers: sizes that should agree, or an index beyond the end
of its axis. The dims of the node's inputs that have these sizes identify the violated constraint. Messages
are classified by their wording, regardless of the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from graphopt.analysis.symbolic import Dim, evaluate
from graphopt.inputs.constraint_system import ConstraintSystem
from graphopt.inputs.dim_bindings import Binding
from graphopt.inputs.size_constraint import SizeConstraint, equal, least

_NODE = re.compile(r"\b\w+ '([^']+)': ")
_SHAPE = re.compile(r"\{(-?\d+(?:, ?-?\d+)*)\}")
#: Numbers in messages that are numbers of axes, inputs or outputs, not sizes.
_ORDINAL = re.compile(
    r"\b(?:axis|dim|dimension|input|operand|output|batch_dims)[ =:]+\d+|\b\d+(?:st|nd|rd|th)\b", re.I
)
_NUMBER = re.compile(r"(?<![\w.-])\d+(?![\w.]*\w)")
_INDEX = re.compile(r"invalid ind|out of data bounds|out of range value in index|index out of bounds", re.I)
_WHICH = re.compile(r"(?:index|indice|idx) ?= ?(-?\d+)")
_WITHIN = re.compile(r"within the inclusive range \[-(\d+),")


def constraints_from_error(
    message: str, constraints: ConstraintSystem, binding: Binding
) -> list[SizeConstraint]:
    """The violated constraints according to ``message``, the error of a run with ``binding``.

    Args:
        message: message of the error raised by :func:`graphopt.ort.session.run`.
        constraints: provides the shapes of the node's inputs.
        binding: the sizes of that run.
    """
    node = _NODE.search(message)
    shapes = constraints.inputs_at(node[1]) if node is not None else []
    text = message[node.end() :] if node is not None else message
    if _INDEX.search(text):
        which, within = _WHICH.search(text), _WITHIN.search(text)
        data = [dim for shape in shapes[:1] for dim in shape] if shapes else constraints.symbols()
        if within is not None:
            data = [dim for dim in data if evaluate(dim, binding) == int(within[1])]
        elif not shapes:
            return []
        return list(_longer(None if which is None else int(which[1]), data, binding))
    # without shapes of the node, a size identifies the symbol: most symbols have distinct sizes
    dims = dict.fromkeys([dim for shape in shapes for dim in shape] + constraints.symbols())
    found = [rule for a, b in _disagreeing(text) for rule in _agreements(a, b, list(dims), binding)]
    return found or list(_alike(shapes, binding))


def _longer(index: int | None, dims: Sequence[Dim], binding: Binding) -> Iterator[SizeConstraint]:
    """Lower bounds on the dynamic dims among ``dims``, the sizes of indexed axes."""
    for dim in dims:
        size = evaluate(dim, binding)
        if isinstance(dim, int) or size is None:
            continue
        needed = 2 * size if index is None else index + 1 if index >= 0 else -index
        if needed > size:
            yield least(dim, needed)


def _disagreeing(text: str) -> Iterator[tuple[int, int]]:
    """Pairs of different sizes that should agree according to ``text``."""
    shapes = [tuple(map(int, part.split(","))) for part in _SHAPE.findall(text)]
    pairs = [(one, other) for one, other in pairwise(shapes) if len(one) == len(other)]
    for one, other in pairs:
        yield from ((a, b) for a, b in zip(one, other, strict=True) if a != b and min(a, b) > 0)
    if not pairs:
        sizes = dict.fromkeys(map(int, _NUMBER.findall(_ORDINAL.sub("", text))))
        sizes.pop(1, None)
        if len(sizes) == 2:
            first, second = sizes
            yield first, second


def _agreements(a: int, b: int, dims: Sequence[Dim], binding: Binding) -> Iterator[SizeConstraint]:
    """Equality of the first dim of size ``a`` and the first dim of size ``b``, or the number itself."""
    left, right = (
        [dim for dim in dims if not isinstance(dim, int) and evaluate(dim, binding) == size]
        for size in (a, b)
    )
    if left and right:
        yield equal(left[0], right[0])
    elif left:
        yield equal(left[0], b)
    elif right:
        yield equal(right[0], a)


def _alike(shapes: Sequence[Sequence[Dim]], binding: Binding) -> Iterator[SizeConstraint]:
    """Equality of the dims of inputs of equal rank that differ, if neither is 1."""
    for one, other in combinations(shapes, 2):
        if len(one) == len(other):
            for a, b in zip(one, other, strict=True):
                sizes = (evaluate(a, binding), evaluate(b, binding))
                if None not in sizes and sizes[0] != sizes[1] and 1 not in sizes:
                    yield equal(a, b)
