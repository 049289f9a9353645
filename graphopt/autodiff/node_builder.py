"""Append nodes to a graph: operators, operands, bodies and shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, overload

import numpy as np

from graphopt import ir
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import NeedsOpset, StoppedGradient, UnknownType
from graphopt.context import Context

Operand = ir.Value | np.ndarray | np.generic | ir.TensorProtocol | Sequence[int] | float | int | None
#: A size: an int if it is static, otherwise an int64 vector of one element.
Size = int | ir.Value


class Operator(Protocol):
    """Appends a node of one operator. Keywords are attributes; with ``outputs``, returns a tuple."""

    @overload
    def __call__(self, *operands: Operand, outputs: int, **attributes: Any) -> tuple[ir.Value, ...]: ...
    @overload
    def __call__(self, *operands: Operand, **attributes: Any) -> ir.Value: ...


class NodeBuilder:
    """Appends nodes to ``graph``: ``op.Mul(dy, b)``.

    Operands are values, ``None`` for an omitted input, numbers (scalars of the element type of the other
    operands), lists of ints (int64 vectors) and numpy arrays. Keywords are attributes; ``None`` omits one.
    ``op.Split(x, outputs=2)`` returns a tuple.

    Attributes:
        prefix: prefix of the names of new nodes.
        stopped: nodes in bodies through which no gradient flows, and nodes with an incomplete gradient.
    """

    def __init__(self, cx: Context, graph: ir.Graph) -> None:
        self.cx = cx
        self.graph = graph
        self.prefix = "grad"
        self.stopped: list[StoppedGradient] = []
        self._made: list[ir.Node] = []
        self._own: set[ir.Node] = set()
        self._constants: dict[tuple[Any, ...], ir.Value] = {}
        self._constant_graph = graph

    # Nodes ---------------------------------------------------------------------------------

    def __getattr__(self, op_type: str) -> Operator:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def make(*operands: Operand, outputs: int | None = None, **attributes: Any) -> Any:
            if outputs is None:
                return self.node(op_type, operands, attributes)
            return self.multi_output_node(op_type, operands, attributes, outputs=outputs)

        return make

    def node(
        self, op_type: str, operands: Sequence[Operand], attributes: Any = (), *, domain: str = ""
    ) -> ir.Value:
        """The output of a new node of any operator; attributes as for :meth:`ir.Editor.make_node`."""
        return self.multi_output_node(op_type, operands, attributes, domain=domain, outputs=1)[0]

    def multi_output_node(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: Any = (),
        *,
        domain: str = "",
        outputs: int,
    ) -> tuple[ir.Value, ...]:
        """The outputs of a new node; ``outputs`` is their number."""
        inputs = self._values(operands)
        name = f"{self.prefix}_{op_type}"
        node = self.cx.edit.make_node(op_type, inputs, attributes, domain=domain, outputs=outputs, name=name)
        self._append(node)
        return tuple(node.outputs)

    def inline_function(
        self,
        function: ir.Function,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr],
    ) -> tuple[ir.Value, ...]:
        """Copies of the nodes of ``function``, applied to ``inputs``; returns its outputs.

        The function's operators must have the same semantics at the opset of this graph.
        """
        edit = self.cx.edit
        missing = [None] * (len(function.inputs) - len(inputs))
        copier = ir.Cloner(
            dict(zip(function.inputs, [*inputs, *missing], strict=True)),
            {**dict.fromkeys(function.attributes), **attributes},
            value_name=lambda name: edit.fresh_name(f"{self.prefix}/{name}"),
            node_name=lambda name: edit.fresh_node_name(f"{self.prefix}/{name}"),
            declarations=False,
        )
        for node in copier.nodes(function.graph):
            self._append(node)
        results = [copier.value(output) for output in function.outputs]
        assert None not in results, f"{function.name} returns an omitted input"
        return tuple(result for result in results if result is not None)

    def inline_body(self, body: ir.Graph, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Copies of the nodes of ``body``, applied to ``inputs``; returns its outputs."""
        copier = self.body_cloner(body, inputs)
        for node in copier.nodes(body):
            self._append(node)
        return [copier.values.get(output) or output for output in body.outputs]

    def body_cloner(self, body: ir.Graph, inputs: Sequence[ir.Value]) -> ir.Cloner:
        """Copies nodes of ``body``, applied to ``inputs``; initializers become constants of this graph."""
        values = dict(zip(body.inputs, inputs, strict=True))
        for value in body.initializers.values():
            values[value] = self.constant(ir.constant_of(value))
        return self.cloner(values)

    def cloner(self, values: Mapping[ir.Value, ir.Value]) -> ir.Cloner:
        """Copies nodes, with their inputs replaced by ``values``."""
        edit = self.cx.edit
        return ir.Cloner(
            {**values}, value_name=edit.fresh_name, node_name=edit.fresh_node_name, declarations=False
        )

    def formal(self, name: str, type_: ir.TypeProtocol | None, shape: ir.Shape | None = None) -> ir.Value:
        """An input of a new body, with a unique name."""
        return ir.Value(name=self.cx.edit.fresh_name(name), type=type_, shape=shape)

    def _append(self, node: ir.Node) -> None:
        self.cx.edit.append(self.graph, node)
        self.cx.edit.import_domain(node)
        self._made.append(node)
        self._own.add(node)

    def require_opset(self, version: int) -> None:
        """Require opset ``version`` for the nodes that follow; an older model is converted first.

        Raises:
            NeedsOpset: the graph's opset is older.
        """
        if self.version < version:
            raise NeedsOpset(version)

    def warn_incomplete(self, node: PrimalNode, reason: str) -> None:
        """Record that the gradient of ``node`` is incomplete; users receive a warning."""
        self.stopped.append(StoppedGradient(node.op_type, node.label, reason, partly=True))

    @property
    def version(self) -> int:
        """The opset version of the standard domain."""
        imports = self.cx.edit.scopes.imports(self.graph)
        return ir.standard_version(imports, 0)

    def within(self, body: ir.Graph) -> Self:
        """A builder that appends nodes to ``body``."""
        inner = type(self)(self.cx, body)
        inner.prefix = self.prefix
        return inner

    def begin_body(self, name: str, inputs: Sequence[ir.Value] = ()) -> Self:
        """A builder for a new body, to be attached to a node after :meth:`end_body`.

        Args:
            inputs: formal inputs with declared types; facts about these inputs may have been assumed earlier.
        """
        for value in inputs:
            self.cx.facts.assume_declared(value)
        return self.within(self.cx.edit.begin_body(self.graph, inputs, name))

    def begin_region(self, name: str) -> Self:
        """A builder for a new body without inputs, with the constants of this builder."""
        inner = self.begin_body(name)
        inner._constants, inner._constant_graph = self._constants, self._constant_graph
        return inner

    def end_body(self, outputs: Sequence[ir.Value]) -> ir.Graph:
        """The finished body, which returns ``outputs``.

        Facts inside it depend on assumptions about its inputs, and are discarded.
        """
        self.cx.edit.set_outputs(self.graph, outputs)
        self.cx.facts.invalidate(self.graph)
        return self.graph

    def mark(self) -> int:
        """The current position in the sequence of nodes, for :meth:`nodes_since` and :meth:`drop_unread`."""
        return len(self._made)

    def nodes_since(self, mark: int) -> list[ir.Node]:
        """The nodes created since ``mark``, in order."""
        return self._made[mark:]

    def drop_unread(self, mark: int, results: Iterable[ir.Value]) -> None:
        """Remove the nodes created since ``mark`` that ``results`` do not depend on."""
        kept = set(results)
        made = self._made[mark:]
        del self._made[mark:]
        for node in reversed(made):
            if any(ir.is_read(output) or output in kept for output in node.outputs):
                self._made.append(node)
            else:
                self.cx.edit.remove_with_bodies(node)
        self._made[mark:] = reversed(self._made[mark:])

    def has_made(self, value: ir.Value) -> bool:
        """Whether ``value`` is the output of a node created by this builder."""
        node = value.producer()
        return node is not None and node in self._own

    def drop_constants(self) -> None:
        """Remove unused constants."""
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
        if dtype is not None and isinstance(operand, (float, int)) and not isinstance(operand, np.generic):
            return self.constant(np.array(operand).astype(dtype.numpy()))
        if isinstance(operand, (list, tuple)):
            return self.constant(np.array(operand, np.int64))
        return self.constant(operand)

    def _common_dtype(self, operands: Sequence[Operand]) -> ir.DataType:
        """The element type of the first operand that is not a boolean condition."""
        for operand in operands:
            if isinstance(operand, ir.Value):
                dtype = self.dtype(operand)
                if dtype != ir.DataType.BOOL:
                    return dtype
        raise TypeError("a Python number needs a typed operand beside it")

    def dtype(self, value: ir.Value) -> ir.DataType:
        """The element type of ``value``.

        Raises:
            UnknownType: the element type is unknown.
        """
        dtype = self.cx.dtype(value) or value.dtype  # onnxruntime enforces declared element types
        if dtype is None:
            raise UnknownType(value)
        return dtype

    def constant(self, data: Any) -> ir.Value:
        """A constant with these contents; equal arrays share one constant."""
        if isinstance(data, np.generic):
            data = np.asarray(data)
        key = (data.dtype.name, data.shape, data.tobytes()) if isinstance(data, np.ndarray) else (id(data),)
        value = self._constants.get(key)
        if value is None:
            value = self._constants[key] = self.cx.edit.constant(self._constant_graph, data, "grad_const")
        return value

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """A scalar of the element type of ``like``."""
        return self.constant(np.array(number).astype(self.dtype(like).numpy()))

    # Shapes --------------------------------------------------------------------------------

    def shape_of(self, x: ir.Value) -> ir.Value:
        """The shape of ``x`` as an int64 vector, a constant if it is static."""
        static = self.cx.static_shape(x)
        return self.Shape(x) if static is None else self.constant(np.array(static, np.int64))

    def dim(self, x: ir.Value, axis: int) -> Size:
        """One size of ``x``. A negative ``axis`` requires a known rank."""
        shape = self.cx.shape(x)
        size = None if shape is None else shape[axis]
        if isinstance(size, int):
            return size
        if axis < 0:
            assert shape is not None
            axis += len(shape)
        if self.version >= 15:
            return self.Shape(x, start=axis, end=axis + 1)
        return self.Gather(self.Shape(x), [axis])

    def shape(self, *sizes: Size) -> ir.Value:
        """A shape of the given sizes, as an int64 vector."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64))
        parts: list[list[int] | ir.Value] = []
        for size in sizes:
            if not isinstance(size, int):
                parts.append(size)
            elif parts and isinstance(parts[-1], list):
                parts[-1].append(size)
            else:
                parts.append([size])
        first = parts[0]
        return first if len(parts) == 1 and isinstance(first, ir.Value) else self.Concat(*parts, axis=0)

    def scalar(self, size: Size) -> ir.Value:
        """``size`` as an int64 scalar."""
        return self.constant(np.int64(size)) if isinstance(size, int) else self.Squeeze(size, [0])

    def arange(self, size: Size) -> ir.Value:
        """0, 1, … below ``size``, int64."""
        if isinstance(size, int):
            return self.constant(np.arange(size))
        zero, one = self.constant(np.int64(0)), self.constant(np.int64(1))
        return self.Range(zero, self.scalar(size), one)

    def product(self, *sizes: Size) -> Size:
        """The product of sizes."""
        product: Size = math.prod(size for size in sizes if isinstance(size, int))
        for size in sizes:
            if not isinstance(size, int):
                product = size if isinstance(product, int) and product == 1 else self.Mul(size, product)
        return product

    def only_where(self, condition: ir.Value, x: ir.Value) -> ir.Value:
        """``x`` where ``condition`` holds and zero elsewhere, even where ``x`` is not finite."""
        return self.Where(condition, x, self.number(0.0, x))
