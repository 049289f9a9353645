"""``op`` in a gradient function: writes nodes at the end of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff import ort_workarounds
from graphopt.autodiff.lib import sequences
from graphopt.autodiff.primal import PrimalNode
from graphopt.autodiff.registry import NeedsOpset, StoppedGradient, UnknownType
from graphopt.context import Context

Operand = ir.Value | np.ndarray | np.generic | ir.TensorProtocol | Sequence[int] | float | int | None
#: A size: an int where it is known, else a vector of one element.
Size = int | ir.Value

#: Filled tensors of at most so many elements are constants.
_SMALL = 16


class GraphBuilder:
    """Appends nodes to ``graph``: ``op.Mul(dy, b)``.

    Operands are values, ``None`` for an input that is left out, numbers, which become scalars of the
    element type of the other operands, lists of ints, which become int64 vectors, and numpy arrays.
    ``op.Split(x, outputs=2)`` returns a tuple. Keywords are attributes; ``None`` leaves one out.

    Attributes:
        prefix: what names of new nodes begin with.
        stopped: nodes in bodies that let no gradient through, and nodes that let a part of one through.
    """

    def __init__(self, cx: Context, graph: ir.Graph) -> None:
        self.cx = cx
        self.graph = graph
        self.prefix = "grad"
        self.stopped: list[StoppedGradient] = []
        self._made: list[ir.Node] = []
        self._own: set[ir.Node] = set()
        self._constants: dict[tuple[Any, ...], ir.Value] = {}

    # Nodes ---------------------------------------------------------------------------------

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def make(*operands: Operand, outputs: int = 1, **attributes: Any) -> Any:
            return self.node(op_type, operands, attributes, outputs=outputs)

        return make

    def MatMul(self, a: Operand, b: Operand) -> ir.Value:
        """See :func:`graphopt.autodiff.ort_workarounds.matmul`."""
        return ort_workarounds.matmul(self, a, b)

    def Einsum(self, *operands: Operand, equation: str) -> ir.Value:
        """See :func:`graphopt.autodiff.ort_workarounds.einsum`."""
        return ort_workarounds.einsum(self, operands, equation)

    def Expand(self, x: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
        """See :func:`graphopt.autodiff.ort_workarounds.expand`."""
        return ort_workarounds.expand(self, x, shape)

    def node(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: Any = (),
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> Any:
        """A new node of any operator; attributes as for :meth:`ir.Editor.make_node`."""
        inputs = self._values(operands)
        name = f"{self.prefix}_{op_type}"
        node = self.cx.edit.make_node(op_type, inputs, attributes, domain=domain, outputs=outputs, name=name)
        self._append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def call(
        self,
        function: ir.Function,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr],
    ) -> tuple[ir.Value, ...]:
        """The outputs of ``function``, whose nodes are written out. Its operators must mean the same here."""
        edit = self.cx.edit
        missing = [None] * (len(function.inputs) - len(inputs))
        copier = ir.Copier(
            dict(zip(function.inputs, [*inputs, *missing], strict=True)),
            {**dict.fromkeys(function.attributes), **attributes},
            value_name=lambda name: edit.fresh_name(f"{self.prefix}/{name}"),
            node_name=lambda name: edit.fresh_node_name(f"{self.prefix}/{name}"),
            declarations=False,
        )
        for node in copier.nodes(function.graph):
            self._append(node)
        results = [copier.value(output) for output in function.outputs]
        assert None not in results, f"{function.name} returns an input that is left out"
        return tuple(result for result in results if result is not None)

    def inlined(self, body: ir.Graph, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """The outputs of ``body``, whose nodes are copied, for these inputs."""
        edit = self.cx.edit
        values = dict(zip(body.inputs, inputs, strict=True))
        for value in body.initializers.values():
            values[value] = self.constant(ir.constant_of(value))
        copier = ir.Copier(
            {**values}, value_name=edit.fresh_name, node_name=edit.fresh_node_name, declarations=False
        )
        for node in copier.nodes(body):
            self._append(node)
        return [copier.values.get(output) or output for output in body.outputs]

    def _append(self, node: ir.Node) -> None:
        self.cx.edit.append(self.graph, node)
        self.cx.edit.import_domain(node)
        self._made.append(node)
        self._own.add(node)

    def needs(self, version: int) -> None:
        """Say that what follows is of opset ``version``; an older model is converted first."""
        if self.version < version:
            raise NeedsOpset(version)

    def leave_out(self, node: PrimalNode, reason: str) -> None:
        """Record that only a part of what ``node`` does has a gradient, which users are warned of."""
        self.stopped.append(StoppedGradient(node.op_type, node.label, reason, partly=True))

    @property
    def version(self) -> int:
        """The opset version of the standard's operators."""
        imports = self.cx.edit.scopes.imports(self.graph)
        return ir.standard_version(imports, 0)

    def within(self, body: ir.Graph) -> GraphBuilder:
        """Appends nodes to ``body`` instead."""
        inner = GraphBuilder(self.cx, body)
        inner.prefix = self.prefix
        return inner

    def begin_body(self, name: str, inputs: Sequence[ir.Value] = ()) -> GraphBuilder:
        """Appends nodes to a new body, which a node made later holds. See :meth:`end_body`.

        Args:
            inputs: of declared types; more may be presumed of them already.
        """
        for value in inputs:
            self.cx.facts.presume_declared(value)
        return self.within(self.cx.edit.begin_body(self.graph, inputs, name))

    def end_body(self, outputs: Sequence[ir.Value]) -> ir.Graph:
        """The body that was begun, which returns ``outputs``.

        What was known inside followed from what was presumed of its inputs, and is forgotten.
        """
        self.cx.edit.set_outputs(self.graph, outputs)
        self.cx.facts.forget(self.graph)
        return self.graph

    def mark(self) -> int:
        """A place among the nodes made so far, for :meth:`drop_unread`."""
        return len(self._made)

    def made_since(self, mark: int) -> list[ir.Node]:
        """The nodes made since ``mark``, in order."""
        return self._made[mark:]

    def drop_unread(self, mark: int, results: Iterable[ir.Value]) -> None:
        """Remove the nodes made since ``mark`` that neither each other nor ``results`` need."""
        kept = set(results)
        made = self._made[mark:]
        del self._made[mark:]
        for node in reversed(made):
            if any(ir.is_read(output) or output in kept for output in node.outputs):
                self._made.append(node)
            else:
                self.cx.edit.remove_whole(node)
        self._made[mark:] = reversed(self._made[mark:])

    def has_made(self, value: ir.Value) -> bool:
        """Whether ``value`` is the output of a node made here."""
        node = value.producer()
        return node is not None and node in self._own

    def drop_constants(self) -> None:
        """Remove the constants that nothing reads."""
        for value in self._constants.values():
            if not ir.is_read(value) and value.is_initializer():
                self.cx.edit.remove_initializer(value)
        self._constants.clear()

    # Operands ------------------------------------------------------------------------------

    def _values(self, operands: Sequence[Operand]) -> list[ir.Value | None]:
        dtype = None
        if any(isinstance(operand, (float, int)) for operand in operands):
            dtype = self._common_dtype(operands)
        return [self._value(operand, dtype) for operand in operands]

    def _value(self, operand: Operand, dtype: ir.DataType | None) -> ir.Value | None:
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, (float, int)) and not isinstance(operand, np.generic):
            assert dtype is not None
            return self.constant(np.array(operand).astype(dtype.numpy()))
        if isinstance(operand, (list, tuple)):
            return self.constant(np.array(operand, np.int64))
        return self.constant(operand)

    def _common_dtype(self, operands: Sequence[Operand]) -> ir.DataType:
        """The element type of the first operand that is no condition."""
        for operand in operands:
            if isinstance(operand, ir.Value):
                dtype = self.dtype(operand)
                if dtype != ir.DataType.BOOL:
                    return dtype
        raise TypeError("a number needs an operand beside it that tells the element type")

    def dtype(self, value: ir.Value) -> ir.DataType:
        """The element type of ``value``.

        Raises:
            UnknownType: it is unknown.
        """
        dtype = self.cx.dtype(value) or value.dtype  # onnxruntime holds models to declared element types
        if dtype is None:
            raise UnknownType(value)
        return dtype

    def constant(self, data: Any) -> ir.Value:
        """A constant with these contents; the same small one is made once."""
        if isinstance(data, np.generic):
            data = np.asarray(data)
        key = (data.dtype.name, data.shape, data.tobytes()) if isinstance(data, np.ndarray) else (id(data),)
        value = self._constants.get(key)
        if value is None:
            value = self._constants[key] = self.cx.edit.constant(self.graph, data, "grad_const")
        return value

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """A scalar of the element type of ``like``."""
        return self.constant(np.array(number).astype(self.dtype(like).numpy()))

    # Shapes --------------------------------------------------------------------------------

    def shape_of(self, x: ir.Value) -> ir.Value:
        """The shape of ``x`` as an int64 vector: a constant where it is known."""
        static = self.cx.static_shape(x)
        return self.Shape(x) if static is None else self.constant(np.array(static, np.int64))

    def dim(self, x: ir.Value, axis: int) -> Size:
        """One size of ``x``, whose rank must be known if ``axis`` is negative: an int if it is known."""
        shape = self.cx.shape(x)
        if shape is not None and isinstance(shape[axis], int):
            return int(shape[axis])
        if axis < 0:
            assert shape is not None
            axis += len(shape)
        if self.version >= 15:
            return self.Shape(x, start=axis, end=axis + 1)
        return self.Gather(self.Shape(x), [axis])

    def shape(self, *sizes: Size) -> ir.Value:
        """A shape of its sizes, ints or vectors of one element, as an int64 vector."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64))
        parts: list[Any] = []
        for size in sizes:
            if isinstance(size, int) and parts and isinstance(parts[-1], list):
                parts[-1].append(size)
            else:
                parts.append([size] if isinstance(size, int) else size)
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def product(self, *sizes: Size) -> Size:
        """The product of sizes."""
        product: Size = math.prod(size for size in sizes if isinstance(size, int))
        for size in sizes:
            if not isinstance(size, int):
                product = size if isinstance(product, int) and product == 1 else self.Mul(size, product)
        return product

    def reshape(self, x: ir.Value, shape: Operand) -> ir.Value:
        """``x`` with other dims, where a 0 is a size of 0."""
        known = shape
        if isinstance(shape, ir.Value):
            known = self.cx.static_ints(shape)
        zeros = known is None or 0 in known  # type: ignore[operator]
        if zeros:
            self.needs(14)
        return self.Reshape(x, shape, allowzero=1 if zeros else None)

    def reshape_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """``x`` with the dims of ``like``, which has as many elements."""
        return x if self.cx.facts.shape_equal(x, like) else self.reshape(x, self.shape_of(like))

    def expand_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """``x`` broadcast to the dims of ``like``."""
        return x if self.cx.facts.shape_equal(x, like) else self.Expand(x, self.shape_of(like))

    def reduce_to(self, x: ir.Value, like: ir.Value, shaped_as: ir.Value | None = None) -> ir.Value:
        """Sum ``x`` over the axes along which ``like`` was broadcast to its dims.

        Nothing is done where facts tell that the dims are the same; axes are constants where facts tell
        them, and found by the model where they do not.

        Args:
            shaped_as: a value that is known to have the dims of ``x``, of which facts may tell more.
        """
        big, small = self.cx.shape(shaped_as or x), self.cx.shape(like)
        if big is None or small is None or len(big) < len(small):
            return self._reduce_unknown(x, like)
        extra = len(big) - len(small)
        axes = list(range(extra))
        for axis, dim in enumerate(small, extra):
            if self.cx.facts.dim_equal(big[axis], dim) or (isinstance(dim, int) and dim != 1):
                continue
            if dim != 1:
                return self._reduce_by_shapes(x, like, extra)
            axes.append(axis)
        if not axes:
            return x
        if len(axes) in (extra, len(big)) and (len(axes) == extra or not small):
            return self.ReduceSum(x, axes, keepdims=0)
        summed = self.ReduceSum(x, axes, keepdims=1)
        return self.Squeeze(summed, list(range(extra))) if extra else summed

    def _reduce_by_shapes(self, x: ir.Value, like: ir.Value, extra: int) -> ir.Value:
        shape: ir.Value = self.shape_of(like)
        if extra:
            shape = self.Concat([1] * extra, shape, axis=0)
        summed = self._sum_where_one(x, shape)
        return self.Squeeze(summed, list(range(extra))) if extra else summed

    def _reduce_unknown(self, x: ir.Value, like: ir.Value) -> ir.Value:
        shape = self.Shape(like)
        missing = self.Sub(self.Shape(self.Shape(x)), self.Shape(shape))
        ones = self.ConstantOfShape(missing, value=np.ones(1, np.int64))
        summed = self._sum_where_one(x, self.Concat(ones, shape, axis=0))
        return self.reshape(summed, shape)

    def _sum_where_one(self, x: ir.Value, shape: ir.Value) -> ir.Value:
        """Sum over the axes where ``shape`` is 1 and the dims of ``x`` are not."""
        broadcast = self.And(self.Equal(shape, 1), self.Not(self.Equal(self.Shape(x), 1)))
        axes = self.Squeeze(self.NonZero(broadcast), [0])
        return self.ReduceSum(x, axes, keepdims=1, noop_with_empty_axes=1)

    def mean(self, x: ir.Value, axes: list[int]) -> ir.Value:
        """The mean of ``x`` along ``axes``, which stay with size 1."""
        if self.version < 18:
            return self.ReduceMean(x, axes=axes, keepdims=1)
        return self.ReduceMean(x, axes, keepdims=1)

    # Tensors -------------------------------------------------------------------------------

    def filled_like(self, x: ir.Value, number: float) -> ir.Value:
        """A tensor of the shape and element type of ``x`` with one number throughout."""
        value = np.array([number]).astype(self.dtype(x).numpy())
        static = self.cx.static_shape(x)
        if static is not None and np.prod(static) <= _SMALL:
            return self.constant(np.full(static, value[0]))
        return self.ConstantOfShape(self.shape_of(x), value=value)

    def zeros_like(self, x: ir.Value) -> ir.Value:
        """Zeros of the shape and element type of ``x``, a sequence of such if it is one."""
        return sequences.zeros(self, x) if sequences.is_sequence(x, self.cx) else self.filled_like(x, 0.0)

    def added(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The sum of two gradients of the same value, tensors or sequences."""
        sum_: ir.Value = sequences.added(self, a, b) if sequences.is_sequence(a, self.cx) else self.Add(a, b)
        return sum_

    def ones_like(self, x: ir.Value) -> ir.Value:
        """Ones of the shape and element type of ``x``."""
        return self.filled_like(x, 1.0)

    def unit_vectors(self, size: Size, like: ir.Value) -> ir.Value:
        """The unit matrix of a size, in the element type of ``like``."""
        if isinstance(size, int):
            return self.constant(np.eye(size).astype(self.dtype(like).numpy()))
        unit = self.EyeLike(
            self.ConstantOfShape(self.shape(size, size))
        )  # in single precision, in which all are exact
        return self.cast_like(unit, like)

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``x`` in another element type."""
        return x if self.cx.dtype(x) == dtype else self.Cast(x, to=dtype)

    def cast_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """``x`` in the element type of ``like``."""
        return self.cast(x, self.dtype(like))

    def only_where(self, condition: ir.Value, x: ir.Value) -> ir.Value:
        """``x`` where ``condition`` holds, zero elsewhere (even where ``x`` is not finite)."""
        return self.Where(condition, x, self.number(0.0, x))
