"""How live values pass from the prefix to the rest: as they are, or as their elements and their shape.

ONNX demands a rank of each tensor that a model takes or returns. A tensor whose rank depends on data has none
to declare, so its elements pass as a vector, and its shape as another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.writer import Writer

#: Since this opset, Reshape can be asked for sizes of 0.
_ALLOWS_ZERO = 14
#: The first opset of Expand, which makes empty tensors of any shape in older ones.
_EXPANDS = 8


@dataclass(frozen=True)
class Crossing:
    """How one live value passes from the prefix to the rest.

    Attributes:
        elements: an input of the rest: the value, or its elements as a vector.
        shape: another input: the shape of the value; ``None`` if the value passes as it is.
    """

    elements: ir.Value
    shape: ir.Value | None = None

    @classmethod
    def of(
        cls,
        name: str,
        type_: ir.TypeProtocol,
        sizes: Sequence[int | None] | None,
        editor: ir.Editor,
    ) -> Crossing:
        """How a value of this type and of these sizes passes.

        Args:
            name: of the input; where there are two, they are called ``NAME_elements`` and ``NAME_shape``.
            sizes: ``None`` for an unknown rank.
            editor: of the model that is cut.

        Raises:
            UnsupportedModel: the rank is unknown, and the opset lacks operators to restore it.
        """
        if sizes is not None or not isinstance(type_, ir.TensorType):
            return cls(_value(name, type_, sizes))
        version = ir.standard_version(editor.model.opset_imports)
        if version < _EXPANDS:
            raise UnsupportedModel(
                f"a run can't leave there: the rank of {name!r} depends on data, and opset {version} lacks"
                " operators to hand it over",
                hint="graphopt optimize --target-opset 17 raises the opset",
            )
        elements, shape = (editor.fresh_name(f"{name}_{part}") for part in ("elements", "shape"))
        return cls(_value(elements, type_, [None]), _value(shape, ir.TensorType(ir.DataType.INT64), [None]))

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What the rest takes."""
        return (self.elements,) if self.shape is None else (self.elements, self.shape)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The same as outputs of the prefix, of any sizes."""
        return tuple(
            _value(value.name or "", value.type, None if value.shape is None else [None] * len(value.shape))
            for value in self.inputs
        )

    def given(self, writer: Writer, value: ir.Value) -> tuple[ir.Value, ...]:
        """What the prefix, which ``writer`` writes, returns for ``value``: as many as :attr:`inputs`."""
        if self.shape is None:
            return (value,)
        return writer.value("Reshape", [value, writer.number([-1])]), writer.value("Shape", [value])

    def taken(self, writer: Writer) -> ir.Value:
        """The live value in the rest, which ``writer`` writes."""
        elements, shape = self.elements, self.shape
        if shape is None:
            return elements
        if writer.version >= _ALLOWS_ZERO:
            return writer.value("Reshape", [elements, shape], {"allowzero": 1})
        assert elements.type is not None
        nothing = writer.placeholder(elements.type, [1])
        is_empty = writer.value("Equal", [writer.value("Size", [elements]), writer.number(0)])
        [found] = writer.either(
            is_empty,
            lambda inner: [inner.value("Expand", [nothing, shape])],
            lambda inner: [inner.value("Reshape", [elements, shape])],
            [elements.type],
        )
        return found


def scalar(name: str, dtype: ir.DataType) -> ir.Value:
    """An input or output that holds one number."""
    return _value(name, ir.TensorType(dtype), [])


def _value(name: str, type_: ir.TypeProtocol | None, sizes: Sequence[int | None] | None) -> ir.Value:
    return ir.Value(name=name, type=type_, shape=None if sizes is None else ir.Shape(sizes))
