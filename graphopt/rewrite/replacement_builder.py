"""The builder that rules receive as ``op``: builds the replacement of a match."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.numerics import Numerics
from graphopt.rewrite.traced_array import TracedArray

Operand = ir.Value | np.ndarray | np.generic | ir.TensorProtocol | TracedArray | None

#: Attributes that may be infinite: a missing bound.
_BOUNDS = frozenset({"min", "max", "activation_params"})


class UnrepresentableNumber(Exception):
    """An attribute can't represent a number; the text is the reason.

    Attributes:
        hint: a remedy, if any.
    """

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.hint = hint


def to_float32(number: float) -> float | None:
    """``number`` rounded to float32, the precision of attributes; ``None`` if it overflows or underflows."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(number))
    near = math.isfinite(rounded) and (number == 0 or abs(rounded) >= np.finfo(np.float32).tiny)
    return rounded if near else None


class Builder:
    """Builds nodes that replace ``root``.

    ``op.Transpose(x, perm=[1, 0])`` returns the output of a new node; ``op.Split(x, outputs=2)``
    a tuple. Operands are values, ``None`` for an empty input, or numpy arrays and tensors, which
    become constants. Nodes are added to the graph only by :meth:`commit`.
    """

    def __init__(self, cx: Context, root: ir.Node, domain: str = "") -> None:
        self._cx = cx
        self._edit = cx.edit
        self._root = root
        self._domain = domain
        self._made: list[ir.Node] = []
        self._constants: list[ir.Value] = []
        #: The revision of the model, and the counts of edits, before the first constant.
        self._before: tuple[int, Counter[str]] | None = None

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def make(*operands: Operand, outputs: int = 1, **attributes: Any) -> Any:
            return self.node(op_type, operands, attributes, domain=self._domain, outputs=outputs)

        return make

    def node(
        self,
        op_type: str,
        operands: Any,
        attributes: Any = (),
        *,
        domain: str = "",
        outputs: int = 1,
        overload: str = "",
    ) -> Any:
        """A new node of any operator; ``attributes`` as for :meth:`ir.Editor.make_node`.

        Raises:
            UnrepresentableNumber: an attribute can't represent a float.
        """
        inputs = [x if x is None or isinstance(x, ir.Value) else self.constant(x) for x in operands]
        name = self._root.name or self._root.op_type
        if op_type != self._root.op_type:
            name = f"{name}_{op_type}"
        if isinstance(attributes, Mapping):
            precise = any(map(_has_floats, attributes.values())) and self._is_precise(inputs)
            attributes = {
                name: _as_attribute(op_type, name, given, precise) for name, given in attributes.items()
            }
        node = self._edit.make_node(
            op_type, inputs, attributes, domain=domain, outputs=outputs, overload=overload, name=name
        )
        self._made.append(node)
        return node.outputs[0] if outputs == 1 else node.outputs

    def _is_precise(self, inputs: Sequence[ir.Value | None]) -> bool:
        """Whether the result for ``inputs`` needs more precision than an attribute has."""
        if self._cx.options.numerics is Numerics.APPROXIMATES:
            return False
        return any(x is not None and self._cx.dtype(x) == ir.DataType.DOUBLE for x in inputs)

    def like(self, node: ir.Node, operands: Any, **changed: Any) -> Any:
        """A copy of ``node`` with other operands, and attributes ``changed`` (``None`` removes one)."""
        attributes: dict[str, Any] = {**node.attributes, **changed}
        return self.node(
            node.op_type,
            operands,
            attributes,
            domain=node.domain,
            outputs=len(node.outputs),
            overload=node.overload,
        )

    def fused(self, made: Any) -> Any:
        """Mark the node of ``made`` as the fused operator, as opposed to nodes that convert operands."""
        value = made if isinstance(made, ir.Value) else made[0]
        node = value.producer()
        assert node in self._made
        ir.mark_fused(node)
        return made

    def constant(
        self, data: np.ndarray | np.generic | ir.TensorProtocol | TracedArray, name: str | None = None
    ) -> ir.Value:
        """A constant with these contents."""
        traced = data if isinstance(data, TracedArray) else None
        if isinstance(data, TracedArray):
            data = data.array
        graph = self._root.graph
        assert graph is not None
        if isinstance(data, np.generic):
            data = np.asarray(data)
        if self._before is None:
            self._before = self._edit.revision, self._edit.counts.copy()
        value = self._edit.constant(graph, data, name or f"{self._root.outputs[0].name}_const")
        self._constants.append(value)
        if traced is not None and traced.depends:
            weights = ir.constant_graph_of(graph)
            assert weights is not None
            weights.define(value, traced.expression, traced.conditions)
        return value

    def ints(self, *numbers: int) -> ir.Value:
        """A constant 1-D int64 tensor."""
        return self.constant(np.array(numbers, np.int64))

    @property
    def made(self) -> tuple[ir.Node, ...]:
        """The nodes built so far."""
        return tuple(self._made)

    def commit(self) -> list[ir.Node]:
        """Insert the new nodes before the root."""
        if self._made:
            self._edit.insert_before(self._root, self._made)
            for node in self._made:
                self._edit.import_domain(node)
        return self._made

    def discard(self) -> None:
        """Remove all new nodes and constants."""
        for node in reversed(self._made):
            self._edit.discard(node)
        for value in self._constants:
            producer = value.producer()
            if producer is not None:
                self._edit.remove(producer)
            else:
                self._edit.remove_initializer(value)
        if self._before is not None:
            self._edit.note_undone(*self._before)


def _has_floats(given: Any) -> bool:
    """Whether the value of an attribute has floats."""
    items = given if isinstance(given, list | tuple) else (given,)
    return any(isinstance(item, float | np.floating) for item in items)


def _as_attribute(op_type: str, name: str, given: Any, precise: bool) -> Any:
    """The value of attribute ``name`` for ``given``: floats are rounded to single precision."""
    if isinstance(given, list | tuple) and any(isinstance(item, float) for item in given):
        return [_as_attribute(op_type, name, item, precise) for item in given]
    if not isinstance(given, float | np.floating):
        return given
    number, rounded = float(given), to_float32(float(given))
    if math.isinf(number) and name in _BOUNDS:
        return number
    if rounded is None:
        raise UnrepresentableNumber(
            f"attribute {name} of {op_type} is single precision, whose range does not include {number:g}"
        )
    if precise and rounded != number:
        reason = f"attribute {name} of {op_type} is single precision, which does not represent {number:g}"
        raise UnrepresentableNumber(reason, hint="--fast-math")
    return rounded
