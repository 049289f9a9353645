"""The computation of constants from weights whose contents may change later.

A model with a constant graph is optimized for all contents of its weights, which are variables for rewrites
(:func:`graphopt.ir.constants.constant_of`). A rewrite that only computes with the contents, such as constant
folding, creates a new constant, which is a variable as well, and appends the computation to the constant
graph.

Source: ``split_const_gm`` of ``compile_fx.py``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain, count
from typing import Any

import numpy as np

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.attributes import make_attributes
from graphopt.ir.constants import CONSTANT_GRAPH, IR_VERSION, constant_of
from graphopt.ir.nested_graphs import standard_version, with_bodies
from graphopt.ir.region.clone import Cloner
from graphopt.util.lazy_dataclass import dataclass

#: The first IR version in which an input may have a default.
_DEFAULTS_SINCE = 4
#: The opset version from which the axes of a reduction are an input, by operator.
_AXES_ARE_AN_INPUT = {"ReduceMax": 18, "ReduceSum": 13}


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator of the standard domain, applied to constants.

    Attributes:
        op_type: the operator.
        operands: operations, constants of the model, or arrays.
        attributes: as for :meth:`graphopt.ir.Editor.make_node`.
    """

    op_type: str
    operands: tuple[Expression, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Expression = Operation | onnx_ir.Value | np.ndarray


class ConstantGraph:
    """Computes the constants of a model from its weights.

    Args:
        main: the main graph of the model.
        names: the names of the weights, which are initializers of ``main``.
    """

    def __init__(self, main: onnx_ir.Graph, names: Iterable[str]) -> None:
        self.main = main
        #: The names of all initializers that the model had before it was optimized.
        self.original = frozenset(main.initializers)
        #: The names of the weights.
        self.weights: dict[onnx_ir.Value, str] = {main.initializers[name]: name for name in names}
        self._nodes: list[onnx_ir.Node] = []
        #: The values of this graph, by the constants of the model that they compute.
        self._computed: dict[onnx_ir.Value, onnx_ir.Value] = {}
        #: The values of this graph, by the constants of the model that it reads.
        self._read: dict[onnx_ir.Value, onnx_ir.Value] = {}
        self._own: dict[onnx_ir.Value, None] = {}
        self._conditions: dict[onnx_ir.Value, onnx_ir.Value] = {}
        self._imports = main.opset_imports
        self._results: dict[Operation, onnx_ir.Value] = {}
        self._literals: dict[tuple[str, tuple[int, ...], bytes], onnx_ir.Value] = {}
        for graph in with_bodies(main):
            graph.meta[CONSTANT_GRAPH] = self

    def depends(self, value: onnx_ir.Value) -> bool:
        """Whether ``value`` is a weight, or a constant computed from weights."""
        return value in self.weights or value in self._computed

    def computes(self, value: onnx_ir.Value) -> bool:
        """Whether ``value`` is a constant computed from weights."""
        return value in self._computed

    def append(self, nodes: Sequence[onnx_ir.Node]) -> Mapping[onnx_ir.Value, onnx_ir.Value | None]:
        """Append ``nodes``, which compute new constants; returns an expression for each of their outputs.

        Args:
            nodes: nodes without bodies, in topological order, that read only constants and each other.
        """
        produced = {output for node in nodes for output in node.outputs}
        read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
        copier = Cloner({value: self._operand(value) for value in read if value not in produced})
        self._nodes += copier.nodes(nodes)
        self._own.update((copy, None) for copy in copier.values.values() if copy is not None)
        return copier.values

    def define(
        self, constant: onnx_ir.Value, expression: Expression, conditions: Iterable[Expression] = ()
    ) -> None:
        """Append the computation of the new ``constant``.

        Args:
            constant: the constant.
            expression: computes the contents.
            conditions: each computes one boolean. If it is false for other weights, the rewrite that created
                the constant is not valid for them.
        """
        self._computed[constant] = self._operand(expression)
        for condition in conditions:
            valid, before = self._operand(condition), self._conditions.get(constant)
            self._conditions[constant] = valid if before is None else self._node("And", [before, valid])

    def model(self, main: onnx_ir.Model) -> tuple[onnx_ir.Model, dict[str, str]]:
        """The model that computes the constants of ``main``, the optimized model, from the weights.

        Its inputs are the weights that it reads. The outputs are the constants, with their names in ``main``,
        followed by conditions: a condition is false if the computation of a constant is not valid for the
        weights.

        Returns:
            The model; and the name of the constant for each output that is a condition.
        """
        constants = [value for value in main.graph.initializers.values() if value in self._computed]
        results: list[tuple[onnx_ir.Value | None, str, onnx_ir.Value]] = [
            (constant, constant.name or "", self._computed[constant]) for constant in constants
        ]
        taken = dict.fromkeys([*self.weights.values(), *(name for _, name, _ in results)])
        conditions: dict[str, str] = {}
        for constant in constants:
            if constant in self._conditions:
                name = _unused(f"valid.{constant.name}", taken)
                results.append((None, name, self._conditions[constant]))
                taken[name] = None
                conditions[name] = constant.name or ""
        copier = Cloner()
        nodes = _needed(self._nodes, [value for *_, value in results])
        read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
        read |= dict.fromkeys(value for *_, value in results)
        originals = {copy: value for value, copy in self._read.items()}
        inputs: list[onnx_ir.Value] = []
        initializers: list[onnx_ir.Value] = []
        for copy in (value for value in read if value.producer() is None):
            own = onnx_ir.Value(type=copy.type, shape=copy.shape)
            weight = self.weights.get(originals[copy]) if copy in originals else None
            if weight is None:
                own.const_value = copy.const_value
                initializers.append(own)
            else:
                own.name = weight
                inputs.append(own)
            copier.values[copy] = own
        clones = copier.nodes(nodes)
        inner = [output for node in clones for output in node.outputs if output.name != ""]
        outputs = []
        for result, name, value in results:
            node = onnx_ir.Node("", "Identity", [copier.value(value)])
            output = node.outputs[0]
            output.name = name
            output.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL) if result is None else result.type
            output.shape = onnx_ir.Shape([]) if result is None else result.shape
            clones.append(node)
            outputs.append(output)
        _set_names([*inner, *initializers], taken)
        graph = onnx_ir.Graph(
            inputs,
            outputs,
            nodes=clones,
            initializers=initializers,
            opset_imports=dict(main.opset_imports),
            name="constants",
        )
        graph.meta[IR_VERSION] = max(main.ir_version, _DEFAULTS_SINCE)
        return onnx_ir.Model(graph, ir_version=graph.meta[IR_VERSION]), conditions

    def _operand(self, expression: Expression) -> onnx_ir.Value:
        """The value of this graph that ``expression`` denotes."""
        if isinstance(expression, Operation):
            if expression not in self._results:
                operands = [self._operand(operand) for operand in expression.operands]
                self._results[expression] = self._node(expression.op_type, operands, expression.attributes)
            return self._results[expression]
        if isinstance(expression, onnx_ir.Value):
            if expression in self._own:
                return expression
            if expression in self._computed:
                return self._computed[expression]
            if expression not in self._read:
                tensor = expression.const_value if self.depends(expression) else constant_of(expression)
                assert tensor is not None, "a constant graph reads constants only"
                self._read[expression] = _initializer(tensor)
            return self._read[expression]
        key = expression.dtype.str, expression.shape, expression.tobytes()
        if key not in self._literals:
            self._literals[key] = _initializer(onnx_ir.tensor(expression))
        return self._literals[key]

    def _node(
        self, op_type: str, operands: Sequence[onnx_ir.Value], attributes: Mapping[str, Any] | None = None
    ) -> onnx_ir.Value:
        attributes = dict(attributes or {})
        if standard_version(self._imports) >= _AXES_ARE_AN_INPUT.get(op_type, math.inf):
            operands = [*operands, self._operand(np.array(attributes.pop("axes"), np.int64))]
        node = onnx_ir.Node("", op_type, operands, make_attributes(attributes))
        self._nodes.append(node)
        return node.outputs[0]


def constant_graph_of(graph: onnx_ir.Graph) -> ConstantGraph | None:
    """The computation of constants from weights of the model that contains ``graph``, if recorded."""
    found: ConstantGraph | None = graph.meta.data.get(CONSTANT_GRAPH)
    return found


def _initializer(tensor: onnx_ir.TensorProtocol) -> onnx_ir.Value:
    kind, shape = onnx_ir.TensorType(tensor.dtype), onnx_ir.Shape(tensor.shape.numpy())
    return onnx_ir.Value(type=kind, shape=shape, const_value=tensor)


def _needed(nodes: Sequence[onnx_ir.Node], results: Iterable[onnx_ir.Value]) -> list[onnx_ir.Node]:
    """The nodes that compute ``results``, in order."""
    values = dict.fromkeys(results)
    needed = []
    for node in reversed(nodes):
        if any(output in values for output in node.outputs):
            needed.append(node)
            values.update((value, None) for value in node.inputs if value is not None)
    return needed[::-1]


def _unused(hint: str, taken: Container[str]) -> str:
    """``hint``, or ``hint`` with the first number for which the name is not ``taken``."""
    names = chain([hint], (f"{hint}_{number}" for number in count(1)))
    return next(name for name in names if name not in taken)


def _set_names(values: Iterable[onnx_ir.Value], taken: Container[str]) -> None:
    """Give ``values`` names that are not ``taken``."""
    names = (name for number in count() if (name := f"value_{number}") not in taken)
    for value, name in zip(values, names, strict=False):
        value.name = name
