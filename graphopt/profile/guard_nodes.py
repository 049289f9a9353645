"""Guards as graph nodes, so that a model can check its own inputs or intermediate values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from graphopt import ir
from graphopt.profile import Guard, ValueProfile
from graphopt.profile.value_profile import is_symbol
from graphopt.util.lazy_dataclass import dataclass

#: A position in the vector: the part of the vector for an input, and the offset in this part.
_Position = tuple[tuple[str, str], int]


@dataclass
class GuardNodes:
    """Appends guards to a graph: one vector contains all sizes and contents that any guard checks.

    The vector is compared with numbers and with itself in one operation, so that a guard costs a few nodes
    regardless of the number of inputs. Known sizes are not checked: onnxruntime checks the declarations of
    inputs, except for scalars. Values that are not tensors are not checked.

    Attributes:
        edit: the editor of the model.
        graph: the graph that computes the vector.
        inputs: model inputs, or values visible in the graph, by their names in guards.
        shapes: the known shapes, with ``None`` for an unknown size or shape; by default the declared ones,
            which are reliable for model inputs only.
    """

    edit: ir.Editor
    graph: ir.Graph
    inputs: Mapping[str, ir.Value]
    shapes: Mapping[str, Sequence[int | None] | None] | None = None
    _parts: list[ir.Value] = field(default_factory=list)
    _starts: dict[tuple[str, str], int] = field(default_factory=dict)
    _length: int = 0
    _vector: ir.Value | None = None

    def prepare(self, guards: list[Guard]) -> None:
        """Append the nodes that compute the vector for all ``guards`` that can hold."""
        guards = [guard for guard in guards if not self._contradicts(guard)]
        for guard in guards:
            for name, expected in guard.inputs.items():
                if name not in self.inputs:
                    continue
                if ("shape", name) not in self._starts and self._is_open(name, expected):
                    shape = self._node("Shape", [self.inputs[name]], {})
                    if self._known(name) is None:
                        self._add(("rank", name), self._as_vector(self._node("Size", [shape], {})), 1)
                    self._add(("shape", name), *self._sizes(name, shape, guards))
                if ("ints", name) not in self._starts and expected.ints is not None:
                    self._add(("ints", name), *self._contents(name, guards))
        if len(self._parts) == 1:
            self._vector = self._parts[0]
        elif self._parts:
            self._vector = self._node("Concat", self._parts, {"axis": 0})

    def condition(self, guard: Guard, graph: ir.Graph) -> ir.Value | None:
        """Append the nodes to ``graph`` that compute whether ``guard`` holds; ``None`` if it always does."""
        if self._contradicts(guard):
            return self.edit.constant(graph, np.array(False), "guard_never")
        pairs, vector = list(self._pairs(guard)), self._vector
        if not pairs or vector is None:
            return None
        left = self._gather(vector, [self._index(position) for position, _ in pairs], graph)
        right = self._expected(vector, [other for _, other in pairs], graph)
        equal = self._node("Equal", [left, right], {}, graph)
        if len(pairs) == 1:
            shape = self._ints(graph, None)
            return self._node("Reshape", [equal, shape], {}, graph)
        number = self._node("Cast", [equal], {"to": ir.DataType.INT32}, graph)
        least = self._minimum(number, graph)
        return self._node("Cast", [least], {"to": ir.DataType.BOOL}, graph)

    def needs_check(self, guard: Guard) -> bool:
        """Whether ``guard`` is not implied by the known shapes."""
        return self._contradicts(guard) or any(True for _ in self._pairs(guard))

    def _index(self, position: _Position) -> int:
        start, offset = position
        return self._starts[start] + offset

    def _gather(self, vector: ir.Value, indices: list[int], graph: ir.Graph) -> ir.Value:
        """Append a Gather of ``vector`` at ``indices``."""
        if indices == list(range(self._length)):
            return vector
        return self._node("Gather", [vector, self._ints(graph, indices)], {"axis": 0}, graph)

    def _expected(self, vector: ir.Value, others: list[_Position | int], graph: ir.Graph) -> ir.Value:
        """Append a vector of these numbers, and elements of ``vector``."""
        numbers = [other for other in others if isinstance(other, int)]
        if len(numbers) == len(others):
            return self._ints(graph, numbers)
        appended = iter(range(self._length, self._length + len(numbers)))
        indices = [next(appended) if isinstance(other, int) else self._index(other) for other in others]
        pool = vector
        if numbers:
            pool = self._node("Concat", [pool, self._ints(graph, numbers)], {"axis": 0}, graph)
        return self._node("Gather", [pool, self._ints(graph, indices)], {"axis": 0}, graph)

    def _pairs(self, guard: Guard) -> Iterator[tuple[_Position, _Position | int]]:
        """The equalities to check: a position in the vector, and a number or another position."""
        numbers = dict(self._declared(guard))
        firsts: dict[str, _Position] = {}
        for name, expected in guard.inputs.items():
            if name not in self.inputs:
                continue
            if self._known(name) is None and expected.shape is not None:
                yield (("rank", name), 0), len(expected.shape)
            for axis in self._open_axes(name, expected):
                dim, position = (expected.shape or ())[axis], (("shape", name), axis)
                dim = dim if isinstance(dim, int) else numbers.get(dim, dim)
                if isinstance(dim, int):
                    yield position, dim
                elif is_symbol(dim) and firsts.setdefault(dim, position) != position:
                    yield position, firsts[dim]
            for index, number in enumerate(expected.ints or ()):
                yield (("ints", name), index), number

    def _declared(self, guard: Guard) -> Iterator[tuple[str, int]]:
        """The symbols of ``guard`` that occur at a dim of known size."""
        for name, expected in guard.inputs.items():
            for dim, size in zip(expected.shape or (), self._known(name) or (), strict=False):
                if is_symbol(dim) and isinstance(size, int):
                    yield dim, size

    def _contradicts(self, guard: Guard) -> bool:
        """Whether ``guard`` contradicts the known shapes."""
        numbers = dict(self._declared(guard))
        for name, expected in guard.inputs.items():
            if expected.shape and self._is_scalar(name):
                return True
            known = self._known(name)
            if known is None or expected.shape is None:
                continue
            if len(expected.shape) != len(known):
                return True
            for dim, size in zip(expected.shape, known, strict=True):
                wanted = dim if isinstance(dim, int) else numbers.get(dim)
                if isinstance(size, int) and wanted is not None and wanted != size:
                    return True
        return False

    def _is_scalar(self, name: str) -> bool:
        """Whether a value is declared as a scalar, which onnxruntime relies on but does not check."""
        value = self.inputs.get(name)
        return self.shapes is None and value is not None and value.shape is not None and not len(value.shape)

    def _known(self, name: str) -> Sequence[int | None] | None:
        """The known sizes of a value."""
        if self.shapes is not None:
            return self.shapes.get(name)
        value = self.inputs.get(name)
        if value is None or value.shape is None or self._is_scalar(name):
            return None
        return [dim if isinstance(dim, int) else None for dim in value.shape]

    def _open_axes(self, name: str, expected: ValueProfile) -> Iterator[int]:
        """The axes of a value whose sizes are unknown."""
        known = self._known(name)
        for axis in range(len(expected.shape or ())):
            if known is None or known[axis] is None:
                yield axis

    def _is_open(self, name: str, expected: ValueProfile) -> bool:
        """Whether the shape of a value must be computed."""
        known = self._known(name)
        return expected.shape is not None and (known is None or None in known)

    def _add(self, position: tuple[str, str], part: ir.Value | None, length: int) -> None:
        self._starts[position] = self._length
        self._length += length
        if part is not None:
            self._parts.append(part)

    def _as_vector(self, scalar: ir.Value) -> ir.Value:
        """Append a Reshape of ``scalar`` to a vector."""
        return self._node("Reshape", [scalar, self._ints(self.graph, [1])], {})

    def _sizes(self, name: str, shape: ir.Value, guards: list[Guard]) -> tuple[ir.Value | None, int]:
        """The sizes of a value; with an unknown rank, padded or cut to the highest rank in ``guards``."""
        known = self._known(name)
        if known is not None:
            return shape, len(known)
        most = max(len(guard.inputs[name].shape or ()) for guard in guards if name in guard.inputs)
        return (self._pad_or_cut(shape, most, -1), most) if most else (None, 0)

    def _contents(self, name: str, guards: list[Guard]) -> tuple[ir.Value, int]:
        """The flattened contents of a value as int64, padded or cut to the highest number in ``guards``."""
        found = [guard.inputs[name].ints for guard in guards if name in guard.inputs]
        count, value, known = max(len(ints or ()) for ints in found), self.inputs[name], self._known(name)
        numbers = value
        if value.dtype is not ir.DataType.INT64:
            numbers = self._node("Cast", [value], {"to": ir.DataType.INT64})
        if self._is_scalar(name):  # onnxruntime rejects a Reshape of a declared scalar to a vector
            return self._as_vector(self._node("ReduceSum", [numbers], {"keepdims": 0})), count
        numbers = self._node("Reshape", [numbers, self._ints(self.graph, [-1])], {})
        if known is None or None in known:
            numbers = self._pad_or_cut(numbers, count, 0)
        return numbers, count

    def _pad_or_cut(self, vector: ir.Value, count: int, filler: int) -> ir.Value:
        """Append nodes that pad ``vector`` with fillers and cut it to ``count`` elements."""
        filled = self._node("Concat", [vector, self._ints(self.graph, [filler] * count)], {"axis": 0})
        index = self._ints(self.graph, list(range(count)))
        return self._node("Gather", [filled, index], {"axis": 0})

    def _minimum(self, number: ir.Value, graph: ir.Graph) -> ir.Value:
        """Append a reduction of a vector to its minimum."""
        if self._version() < 18:
            return self._node("ReduceMin", [number], {"keepdims": 0, "axes": [0]}, graph)
        return self._node("ReduceMin", [number, self._ints(graph, [0])], {"keepdims": 0}, graph)

    def _version(self) -> int:
        imports = self.edit.model.opset_imports
        return ir.standard_version(imports)

    def _ints(self, graph: ir.Graph, numbers: list[int] | None) -> ir.Value:
        """A constant vector; ``None`` for an empty vector, the shape of a scalar."""
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
