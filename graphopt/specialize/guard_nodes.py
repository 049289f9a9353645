"""A guard as nodes, so that a model can check by itself what its inputs are like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphopt import ir
from graphopt.profile import Guard, Seen

#: A position in what is checked of an input.
_Place = tuple[tuple[str, str], int]


@dataclass
class GuardNodes:
    """Writes guards into a graph: one vector holds all sizes and contents that some guard asks for.

    It is compared to itself and to numbers in one go, so that a guard costs a few nodes however many inputs
    it is about. What the model declares is not checked: onnxruntime does.

    Attributes:
        edit: of the model.
        graph: where the vector is made.
        inputs: inputs of the model by name.
    """

    edit: ir.Editor
    graph: ir.Graph
    inputs: Mapping[str, ir.Value]
    _parts: list[ir.Value] = field(default_factory=list)
    _starts: dict[tuple[str, str], int] = field(default_factory=dict)
    _length: int = 0
    _vector: ir.Value | None = None

    def prepare(self, guards: list[Guard]) -> None:
        """Make the vector of what ``guards`` ask for."""
        for guard in guards:
            for name, seen in guard.inputs.items():
                value = self.inputs.get(name)
                if value is None:
                    continue
                if ("shape", name) not in self._starts and self._is_open(value, seen):
                    self._add(("shape", name), *self._shape(value, guards))
                if ("ints", name) not in self._starts and seen.ints is not None:
                    self._add(("ints", name), *self._contents(value, guards))
        if len(self._parts) == 1:
            self._vector = self._parts[0]
        elif self._parts:
            self._vector = self._node("Concat", self._parts, {"axis": 0})

    def condition(self, guard: Guard, graph: ir.Graph) -> ir.Value | None:
        """A scalar that is true where ``guard`` holds, made in ``graph``; ``None`` if it always does."""
        if self._contradicts(guard):
            return self.edit.constant(graph, np.array(False), "guard_never")
        pairs = list(self._pairs(guard))
        if not pairs or self._vector is None:
            return None
        left = self._taken([self._index(place) for place, _ in pairs], graph)
        right = self._other_side([other for _, other in pairs], graph)
        equal = self._node("Equal", [left, right], {}, graph)
        if len(pairs) == 1:
            shape = self._ints(graph, None)
            return self._node("Reshape", [equal, shape], {}, graph)
        number = self._node("Cast", [equal], {"to": ir.DataType.INT32}, graph)
        least = self._all(number, graph)
        return self._node("Cast", [least], {"to": ir.DataType.BOOL}, graph)

    def _index(self, place: _Place) -> int:
        start, offset = place
        return self._starts[start] + offset

    def _taken(self, indices: list[int], graph: ir.Graph) -> ir.Value:
        """The elements of the vector at ``indices``."""
        assert self._vector is not None
        if indices == list(range(self._length)):
            return self._vector
        return self._node("Gather", [self._vector, self._ints(graph, indices)], {"axis": 0}, graph)

    def _other_side(self, others: list[_Place | int], graph: ir.Graph) -> ir.Value:
        """A vector of these numbers, and elements of the vector."""
        assert self._vector is not None
        numbers = [other for other in others if isinstance(other, int)]
        if len(numbers) == len(others):
            return self._ints(graph, numbers)
        behind = iter(range(self._length, self._length + len(numbers)))
        indices = [next(behind) if isinstance(other, int) else self._index(other) for other in others]
        pool = self._vector
        if numbers:
            pool = self._node("Concat", [pool, self._ints(graph, numbers)], {"axis": 0}, graph)
        return self._node("Gather", [pool, self._ints(graph, indices)], {"axis": 0}, graph)

    def _pairs(self, guard: Guard) -> Iterator[tuple[_Place, _Place | int]]:
        """What is to be equal: a place in the vector, and another or a number."""
        numbers = dict(self._declared(guard))
        firsts: dict[str, _Place] = {}
        for name, seen in guard.inputs.items():
            value = self.inputs.get(name)
            if value is None:
                continue
            if value.shape is None and seen.shape is not None:
                yield (("shape", name), len(seen.shape)), -1
            for axis in self._open_axes(value, seen):
                dim, place = (seen.shape or ())[axis], (("shape", name), axis)
                dim = dim if isinstance(dim, int) else numbers.get(dim, dim)
                if isinstance(dim, int):
                    yield place, dim
                elif firsts.setdefault(dim, place) != place:
                    yield place, firsts[dim]
            for index, number in enumerate(seen.ints or ()):
                yield (("ints", name), index), number

    def _declared(self, guard: Guard) -> Iterator[tuple[str, int]]:
        """The symbols of ``guard`` of which some dim is declared to be of a size."""
        for name, seen in guard.inputs.items():
            value = self.inputs.get(name)
            declared = None if value is None else value.shape
            for dim, size in zip(seen.shape or (), declared or (), strict=False):
                if isinstance(dim, str) and isinstance(size, int):
                    yield dim, size

    def _contradicts(self, guard: Guard) -> bool:
        """Whether ``guard`` can't hold for inputs as they are declared."""
        numbers = dict(self._declared(guard))
        for name, seen in guard.inputs.items():
            value = self.inputs.get(name)
            if value is None or value.shape is None or seen.shape is None:
                continue
            if len(seen.shape) != len(value.shape):
                return True
            for dim, size in zip(seen.shape, value.shape, strict=True):
                wanted = dim if isinstance(dim, int) else numbers.get(dim)
                if isinstance(size, int) and wanted != size:
                    return True
        return False

    def _open_axes(self, value: ir.Value, seen: Seen) -> Iterator[int]:
        """The dims of ``value`` that the model does not declare."""
        for axis in range(len(seen.shape or ())):
            if value.shape is None or not isinstance(value.shape[axis], int):
                yield axis

    def _is_open(self, value: ir.Value, seen: Seen) -> bool:
        """Whether the shape of ``value`` has to be looked at."""
        return seen.shape is not None and (value.shape is None or not value.shape.is_static())

    def _add(self, place: tuple[str, str], part: ir.Value, length: int) -> None:
        self._starts[place] = self._length
        self._parts.append(part)
        self._length += length

    def _shape(self, value: ir.Value, guards: list[Guard]) -> tuple[ir.Value, int]:
        """The sizes of ``value``; if its rank is open, as many as guards ask for, and -1 behind the last."""
        shape = self._node("Shape", [value], {})
        if value.shape is not None:
            return shape, len(value.shape)
        most = max(
            len(guard.inputs[value.name or ""].shape or ()) for guard in guards if value.name in guard.inputs
        )
        return self._cut(shape, most + 1, -1), most + 1

    def _contents(self, value: ir.Value, guards: list[Guard]) -> tuple[ir.Value, int]:
        """The contents of ``value`` as int64 numbers, as many as guards ask for, whatever shape it has."""
        found = [guard.inputs[value.name or ""].ints for guard in guards if value.name in guard.inputs]
        count, numbers = max(len(ints or ()) for ints in found), value
        if value.dtype is not ir.DataType.INT64:
            numbers = self._node("Cast", [numbers], {"to": ir.DataType.INT64})
        numbers = self._node("Reshape", [numbers, self._ints(self.graph, [-1])], {})
        if value.shape is None or not value.shape.is_static():
            numbers = self._cut(numbers, count, 0)
        return numbers, count

    def _cut(self, vector: ir.Value, count: int, filler: int) -> ir.Value:
        """``vector`` with fillers behind it, cut to ``count`` numbers."""
        filled = self._node("Concat", [vector, self._ints(self.graph, [filler] * count)], {"axis": 0})
        index = self._ints(self.graph, list(range(count)))
        return self._node("Gather", [filled, index], {"axis": 0})

    def _all(self, number: ir.Value, graph: ir.Graph) -> ir.Value:
        """The least of a vector of numbers, as a scalar."""
        if self._version() < 18:
            return self._node("ReduceMin", [number], {"keepdims": 0, "axes": [0]}, graph)
        return self._node("ReduceMin", [number, self._ints(graph, [0])], {"keepdims": 0}, graph)

    def _version(self) -> int:
        imports = self.edit.model.opset_imports
        return imports.get("", imports.get("ai.onnx", 1))

    def _ints(self, graph: ir.Graph, numbers: list[int] | None) -> ir.Value:
        """A constant vector; ``None`` for the shape of a scalar."""
        return self.edit.constant(graph, np.array(numbers or [], np.int64), "guard_numbers")

    def _node(
        self,
        op_type: str,
        inputs: list[ir.Value],
        attributes: Mapping[str, object],
        graph: ir.Graph | None = None,
    ) -> ir.Value:
        node = self.edit.make_node(op_type, inputs, attributes, name=f"guard_{op_type}")
        self.edit.append(self.graph if graph is None else graph, node)
        return node.outputs[0]
