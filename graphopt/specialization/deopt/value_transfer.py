"""Transfer live values from the prefix to the continuation: unchanged, or as elements and shape.

ONNX requires a rank for each input and output of a model. The rank of a tensor may depend on data, and can't
be declared in this case. Such a tensor is transferred as two vectors, its elements and its shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.graph_writer import Writer
from graphopt.util.lazy_dataclass import dataclass

#: First opset in which Reshape has ``allowzero``.
_ALLOWS_ZERO = 14
#: First opset with Expand, which creates empty tensors of any shape below opset 14.
_EXPANDS = 8


@dataclass(frozen=True)
class Transfer:
    """The transfer of one live value from the prefix to the continuation.

    Attributes:
        elements: an input of the continuation: the value, or the vector of its elements.
        shape: another input: the shape of the value; ``None`` if the value is transferred unchanged.
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
    ) -> Transfer:
        """The transfer of a value of this type and these sizes.

        Args:
            name: the name of the input; two inputs are named ``NAME_elements`` and ``NAME_shape``.
            sizes: the sizes of the value; ``None`` for an unknown rank.
            editor: the editor of the model to split.

        Raises:
            UnsupportedModel: the rank is unknown, and the opset lacks the operators to restore it.
        """
        if sizes is not None or not isinstance(type_, ir.TensorType):
            return cls(_value(name, type_, sizes))
        version = ir.standard_version(editor.model.opset_imports)
        if version < _EXPANDS:
            raise UnsupportedModel(
                f"can't exit there: the rank of {name!r} depends on data, and opset {version} lacks"
                " the operators to transfer it",
                hint="graphopt optimize --target-opset 17 raises the opset",
            )
        elements, shape = (editor.fresh_name(f"{name}_{part}") for part in ("elements", "shape"))
        return cls(_value(elements, type_, [None]), _value(shape, ir.TensorType(ir.DataType.INT64), [None]))

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The inputs of the continuation."""
        return (self.elements,) if self.shape is None else (self.elements, self.shape)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The corresponding outputs of the prefix, with unknown sizes."""
        return tuple(
            _value(value.name or "", value.type, None if value.shape is None else [None] * len(value.shape))
            for value in self.inputs
        )

    def pack(self, writer: Writer, value: ir.Value) -> tuple[ir.Value, ...]:
        """Append the nodes that compute :attr:`outputs` from ``value`` to the prefix."""
        if self.shape is None:
            return (value,)
        return writer.value("Reshape", [value, writer.constant([-1])]), writer.value("Shape", [value])

    def unpack(self, writer: Writer) -> ir.Value:
        """Append the nodes that restore the live value from :attr:`inputs` to the continuation."""
        elements, shape = self.elements, self.shape
        if shape is None:
            return elements
        if writer.version >= _ALLOWS_ZERO:
            return writer.value("Reshape", [elements, shape], {"allowzero": 1})
        assert elements.type is not None
        nothing = writer.placeholder(elements.type, [1])
        is_empty = writer.value("Equal", [writer.value("Size", [elements]), writer.constant(0)])
        [found] = writer.if_else(
            is_empty,
            lambda inner: [inner.value("Expand", [nothing, shape])],
            lambda inner: [inner.value("Reshape", [elements, shape])],
            [elements.type],
        )
        return found


def scalar(name: str, dtype: ir.DataType) -> ir.Value:
    """A scalar graph input or output."""
    return _value(name, ir.TensorType(dtype), [])


def _value(name: str, type_: ir.TypeProtocol | None, sizes: Sequence[int | None] | None) -> ir.Value:
    return ir.Value(name=name, type=type_, shape=None if sizes is None else ir.Shape(sizes))
