"""Matrix products of a graph that can be padded with zeros, and the nodes of the padded product."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graphopt import ir
from graphopt.context import Context, Dim
from graphopt.cost.padded_products import Padding, Product
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.traced_array import TracedArray, concatenate, tensor_to_compute, trace
from graphopt.transforms.products._shared_input_products import is_quantized
from graphopt.util.lazy_dataclass import dataclass

#: Products, with the attributes by which an operand is stored as its transpose.
_OPERATORS = {
    ("", "MatMul"): None,
    ("", "MatMulInteger"): None,
    ("", "Gemm"): ("transA", "transB"),
    (ir.MICROSOFT, "FusedMatMul"): ("transA", "transB"),
}
#: The share of the bytes of a weight by which padding may always enlarge it.
_GROWTH = 1 / 8


class NotPaddable(Exception):
    """A product that can't be padded; the text is the reason."""


@dataclass(frozen=True)
class PaddableProduct:
    """A product whose operands have at least two axes, and known sizes on the inner axis and the columns.

    Attributes:
        node: the MatMul, Gemm, FusedMatMul or MatMulInteger.
        product: its sizes.
        ranks: the ranks of both operands.
    """

    node: ir.Node
    product: Product
    ranks: tuple[int, int]

    @classmethod
    def of(cls, node: ir.Node, cx: Context) -> PaddableProduct | None:
        """``node`` as a product; ``None`` if it is none.

        Raises:
            NotPaddable: it is quantized, an operand is a vector, or a size is not known.
        """
        key = (node.domain, node.op_type)
        if key not in _OPERATORS or node.op_identifier() in cx.model.functions:
            return None
        if is_quantized(node):
            raise NotPaddable("onnxruntime might run it on integers")
        left, right = (cx.shape(value) for value in node.inputs[:2])
        dtype = cx.dtype(node.inputs[0])
        if left is None or right is None or dtype is None:
            raise NotPaddable("the rank or type of an operand is unknown")
        if min(len(left), len(right)) < 2:
            raise NotPaddable("an operand is a vector")
        flags = tuple(bool(_flag(node, name)) for name in _OPERATORS[key] or ())
        transposed = flags or (False, False)
        if any(_flag(node, name) for name in ("transBatchA", "transBatchB")):
            raise NotPaddable("its batches are transposed")
        rows, inner = left[-2:] if not transposed[0] else left[:-3:-1]
        other, columns = right[-2:] if not transposed[1] else right[:-3:-1]
        inner = inner if isinstance(inner, int) else other
        if not isinstance(inner, int) or not isinstance(columns, int):
            raise NotPaddable("the inner size or the number of columns is unknown")
        graph = node.graph
        assert graph is not None
        constant = [tensor_to_compute(value, graph, cx) is not None for value in node.inputs[:2]]
        product = Product(
            dtype.name.lower(),
            dtype.itemsize if isinstance(dtype.itemsize, int) else 1,
            _batch(left, right),
            rows if isinstance(rows, int) else None,
            inner,
            columns,
            _count(left),
            _count(right),
            *transposed,
            *constant,
        )
        return cls(node, product, (len(left), len(right)))

    def check(self, padding: Padding, cx: Context) -> None:
        """Raise NotPaddable if the operands can't be padded."""
        node, bias = self.node, self._bias()
        if _opset(node, cx) < 2:
            raise NotPaddable("Pad of opset 1 has other attributes")
        if node.op_type == "MatMulInteger":
            for point in node.inputs[2:4]:
                if point is not None and not _is_zero(point):
                    raise NotPaddable("a zero point is not zero")
        for index, grown in self._axes(padding):
            value = node.inputs[index]
            if value is not None and grown:
                _check_operand(value, grown, node, cx)
        if bias is not None and (padding.columns or padding.rows):
            if cx.static_shape(bias) is None:
                raise NotPaddable("the shape of the bias is unknown")
            if grown := self._grown_bias(bias, padding, cx):
                _check_operand(bias, grown, node, cx)

    def _bias(self) -> ir.Value | None:
        return self.node.inputs[2] if self.node.op_type == "Gemm" and len(self.node.inputs) > 2 else None

    def _axes(self, padding: Padding) -> list[tuple[int, dict[int, int]]]:
        """For both operands, the zeros to add by negative axis."""
        left, right = [padding.rows, padding.inner], [padding.inner, padding.columns]
        if self.product.left_transposed:
            left.reverse()
        if self.product.right_transposed:
            right.reverse()
        pairs = enumerate((left, right))
        return [
            (index, {axis: count for axis, count in zip((-2, -1), counts, strict=True) if count})
            for index, counts in pairs
        ]

    def write(self, padding: Padding, cx: Context, owner: str) -> bool:
        """Replace the product by a padded one and a Slice; returns whether the rewrite is permitted."""
        node = self.node
        action = cx.begin_rewrite(owner, node)
        if action is None:
            return False
        op = Builder(cx, node)
        operands = list(node.inputs)
        for index, grown in self._axes(padding):
            value = operands[index]
            assert value is not None
            operands[index] = _padded(op, value, grown, self.ranks[index], node, cx)
        bias = self._bias()
        if bias is not None:
            operands[2] = _padded(op, bias, self._grown_bias(bias, padding, cx), cx.rank(bias) or 0, node, cx)
        result = op.like(node, operands)
        cut = {}
        if padding.rows:
            cut[-2] = self.product.rows or 0
        if padding.columns:
            cut[-1] = self.product.columns
        if cut:
            result = _sliced(op, result, cut, max(self.ranks), _opset(node, cx))
        made = op.commit()
        cx.edit.note_origin(made, [node], owner)
        old = dict.fromkeys(value for value in node.inputs if value is not None)
        cx.edit.replace(node.outputs[0], result)
        cx.edit.remove(node)
        for value in old:
            if value.is_initializer() and not ir.is_read(value) and not value.is_graph_input():
                cx.edit.remove_initializer(value)
        cx.end_rewrite(action, node, made)
        return True

    def _grown_bias(self, bias: ir.Value, padding: Padding, cx: Context) -> dict[int, int]:
        """The zeros to add to the bias by negative axis; axes of size 1 are broadcast."""
        shape = cx.static_shape(bias) or ()
        sizes = {-1: (self.product.columns, padding.columns), -2: (self.product.rows, padding.rows)}
        return {
            axis: count
            for axis, (size, count) in sizes.items()
            if count and len(shape) >= -axis and shape[axis] == size and shape[axis] != 1
        }


def _opset(node: ir.Node, cx: Context) -> int:
    """The version of the standard opset in the graph of ``node``."""
    assert node.graph is not None
    return ir.standard_version(cx.edit.scopes.imports(node.graph))


def _flag(node: ir.Node, name: str) -> int:
    """An integer attribute of ``node``, 0 by default.

    Raises:
        NotPaddable: it refers to an attribute of a function.
    """
    attribute = node.attributes.get(name)
    if attribute is None:
        return 0
    if attribute.is_ref():
        raise NotPaddable(f"{name} depends on the call of the function")
    return int(attribute.value)


def _count(shape: Sequence[Dim]) -> int | None:
    """The number of matrices of an operand, if it is known."""
    sizes = ir.all_ints(shape[:-2])
    return None if sizes is None else prod(sizes)


def _batch(left: Sequence[Dim], right: Sequence[Dim]) -> int | None:
    """The number of products, if it is known."""
    first, second = ir.all_ints(left[:-2]), ir.all_ints(right[:-2])
    if first is None or second is None:
        return None
    try:
        return prod(np.broadcast_shapes(first, second))
    except ValueError:
        return None


def _is_zero(value: ir.Value) -> bool:
    tensor = ir.constant_of(value)
    if tensor is None:
        return False
    ir.read(value)
    return not tensor.numpy().any()


def _check_operand(value: ir.Value, grown: dict[int, int], node: ir.Node, cx: Context) -> None:
    """Raise NotPaddable if ``value`` is a constant that would grow too much, or has a type that Pad lacks."""
    graph = node.graph
    assert graph is not None
    tensor = tensor_to_compute(value, graph, cx)
    if tensor is None:
        version, dtype = _opset(node, cx), cx.dtype(value)
        schema = ir.operator_schema("", "Pad", version)
        name = "" if dtype is None else dtype.name.lower()
        if schema is None or f"tensor({name})" not in schema.inputs[0].types:
            raise NotPaddable(f"Pad of opset {version} does not accept {name or 'an unknown type'}")
        return
    sizes = list(tensor.shape.numpy())
    for axis, count in grown.items():
        sizes[axis] += count
    nbytes = tensor.nbytes * prod(sizes) // max(tensor.size, 1)
    is_output = value.is_graph_output() or value.is_graph_input()
    if len(value.uses()) > 1 or is_output or cx.is_tied(value):
        if nbytes > cx.options.fold_limit:
            raise NotPaddable("the weight has other readers, and a copy is large")
    elif nbytes - tensor.nbytes > max(cx.options.fold_limit, int(tensor.nbytes * _GROWTH)):
        raise NotPaddable("the weight would grow by more than the limit")


def _padded(
    op: Builder, value: ir.Value, grown: dict[int, int], rank: int, node: ir.Node, cx: Context
) -> ir.Value:
    """``value`` with zeros after its elements on the axes ``grown``, ahead of time if it is constant."""
    if not grown:
        return value
    graph = node.graph
    assert graph is not None
    array = trace(value, graph, cx)
    if array is not None:
        for axis, count in grown.items():
            shape = list(array.shape)
            shape[axis] = count
            zeros = TracedArray.of(np.zeros(shape, array.dtype))
            array = concatenate([array, zeros], axis + rank)
        return op.constant(array, f"{value.name}_padded")
    amounts = [0] * (2 * rank)
    for axis, count in grown.items():
        amounts[axis] = count
    if _opset(node, cx) < 11:
        padded: ir.Value = op.node("Pad", [value], {"pads": amounts})
    else:
        padded = op.node("Pad", [value, np.array(amounts, np.int64)])
    return padded


def _sliced(op: Builder, value: ir.Value, ends: dict[int, int], rank: int, version: int) -> ir.Value:
    """The first elements of ``value`` on each axis of ``ends``."""
    axes = [axis + rank for axis in ends]
    if version < 10:
        attributes = {"starts": [0] * len(axes), "ends": list(ends.values()), "axes": axes}
        cut: ir.Value = op.node("Slice", [value], attributes)
    else:
        numbers = ([0] * len(axes), list(ends.values()), axes)
        cut = op.node("Slice", [value, *(np.array(part, np.int64) for part in numbers)])
    return cut
