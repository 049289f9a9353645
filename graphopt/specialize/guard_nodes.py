"""A guard as nodes, so that a model can check by itself what its inputs are like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphopt import ir
from graphopt.profile import Guard, Seen

#: A position in the vector that is checked, or a number that it is checked against.
_Place = tuple[str, int]


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
                if any(True for _ in self._open_axes(value, seen)):
                    self._add(("shape", name), *self._shape(value, guards))
                if seen.ints is not None:
                    self._add(("ints", name), *self._contents(value, len(seen.ints)))
        if len(self._parts) == 1:
            self._vector = self._parts[0]
        elif self._parts:
            self._vector = self._node("Concat", self._parts, {"axis": 0})

    def condition(self, guard: Guard, graph: ir.Graph) -> ir.Value | None:
        """A scalar that is true where ``guard`` holds, made in ``graph``; ``None`` if it always does."""
        pairs = list(self._pairs(guard))
        if not pairs or self._vector is None:
            return None
        lefts = [self._starts[place] + offset for (place, offset), _ in pairs]
        rights = [right for _, right in pairs]
        numbers = [right for right in rights if isinstance(right, int)]
        left = self._vector
        if lefts != list(range(self._length)):
            left = self._node("Gather", [left, self._ints(graph, lefts)], {"axis": 0}, graph)
        if len(numbers) == len(rights):
            right = self._ints(graph, numbers)
        else:
            pool = self._vector
            if numbers:
                pool = self._node("Concat", [pool, self._ints(graph, numbers)], {"axis": 0}, graph)
            count, indices = 0, []
            for item in rights:
                if isinstance(item, int):
                    indices.append(self._length + count)
                    count += 1
                else:
                    place, offset = item
                    indices.append(self._starts[place] + offset)
            right = self._node("Gather", [pool, self._ints(graph, indices)], {"axis": 0}, graph)
        equal = self._node("Equal", [left, right], {}, graph)
        if len(pairs) == 1:
            shape = self._ints(graph, None)
            return self._node("Reshape", [equal, shape], {}, graph)
        number = self._node("Cast", [equal], {"to": ir.DataType.INT32}, graph)
        least = self._all(number, graph)
        return self._node("Cast", [least], {"to": ir.DataType.BOOL}, graph)

    def _pairs(
        self, guard: Guard
    ) -> Iterator[tuple[tuple[tuple[str, str], int], int | tuple[tuple[str, str], int]]]:
        """What is to be equal: a place in the vector, and another or a number."""
        firsts: dict[str, tuple[tuple[str, str], int]] = {}
        for name, seen in guard.inputs.items():
            value = self.inputs.get(name)
            if value is None:
                continue
            place = ("shape", name)
            if place in self._starts:
                known = value.shape
                if known is None:
                    assert seen.shape is not None
                    yield (place, len(seen.shape)), -1
                for axis, dim in enumerate(seen.shape or ()):
                    if isinstance(dim, int):
                        if known is None or not isinstance(known[axis], int):
                            yield (place, axis), dim
                        continue
                    first = firsts.setdefault(dim, (place, axis))
                    if first != (place, axis):
                        yield (place, axis), first
            if seen.ints is not None:
                for index, number in enumerate(seen.ints):
                    yield (("ints", name), index), number

    def _open_axes(self, value: ir.Value, seen: Seen) -> Iterator[int]:
        """The dims of ``value`` that the model does not declare."""
        known = value.shape
        for axis in range(len(seen.shape or ())):
            if known is None or not isinstance(known[axis], int):
                yield axis
        if known is None and seen.shape == ():
            yield 0

    def _add(self, place: tuple[str, str], part: ir.Value, length: int) -> None:
        if place not in self._starts:
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

    def _contents(self, value: ir.Value, count: int) -> tuple[ir.Value, int]:
        """The contents of ``value`` as ``count`` int64 numbers, whatever shape it has."""
        numbers = value
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
