"""The primal node that gradient rules receive as ``node``, with the facts about it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.rule_registry import NoGradient, qualified
from graphopt.context import Context, Dim
from graphopt.ops import traits


class PrimalNode:
    """A node of the primal graph, for gradient rules.

    Attributes:
        raw: the node itself.
        cx: analyses (``node.cx.shape(x)``), for rules that need more than the shortcuts here.
        inputs: the inputs; ``None`` for omitted ones.
        outputs: the outputs.
        captured: values of enclosing graphs that its bodies read.
    """

    def __init__(
        self,
        raw: ir.Node,
        cx: Context,
        varied: Container[ir.Value],
        useful: Container[ir.Value],
    ) -> None:
        self.raw = raw
        self.cx = cx
        self.inputs: tuple[ir.Value | None, ...] = tuple(raw.inputs)
        self.captured: tuple[ir.Value, ...] = tuple(ir.captured(raw)) if raw.attributes else ()
        self._varied = varied
        self._useful = useful

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The outputs, including outputs added by :meth:`output`."""
        return tuple(self.raw.outputs)

    @property
    def x(self) -> ir.Value:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> ir.Value:
        """The first output."""
        return self.raw.outputs[0]

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.raw.op_type

    @property
    def label(self) -> str:
        """The node's name in messages, and the prefix of the names of nodes created for it."""
        return ir.label(self.raw)

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.cx.version(self.raw)

    def input(self, index: int) -> ir.Value:
        """A required input.

        Raises:
            NoGradient: the input is omitted.
        """
        value = self.optional(index)
        if value is None:
            raise self.refusal(f"input {index} is omitted")
        return value

    def optional(self, index: int) -> ir.Value | None:
        """An input, or ``None`` if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int) -> ir.Value:
        """An output, which is added to the node if it is missing."""
        if index >= len(self.raw.outputs) or not self.raw.outputs[index].name:
            self.cx.edit.add_node_output(self.raw, index)
        return self.raw.outputs[index]

    def needs_grad(self, index: int) -> bool:
        """Whether the gradient of an input is needed; rules skip expensive work for other inputs."""
        value = self.optional(index)
        return value is not None and value in self._varied

    def needs_grad_of(self, value: ir.Value) -> bool:
        """Whether the gradient of ``value``, such as a captured one, is needed."""
        return value in self._varied

    def is_useful(self, value: ir.Value) -> bool:
        """Whether the differentiated outputs depend on ``value``, differentiably or not."""
        return value in self._useful

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value; if omitted, the standard's default or, without one, ``default``."""
        found = self.raw.attributes.get(name)
        if found is not None and not found.is_ref():
            return tuple(found.value) if isinstance(found.value, list) else found.value
        standard = traits.default_attribute(self.raw.domain, self.raw.op_type, self.version, name)
        return default if standard is None else standard

    def number(self, name: str, default: float = 0.0) -> float:
        """A floating-point attribute, rounded to float32 as in the primal graph."""
        return float(np.float32(self.attribute(name, default)))

    def refuse_inputs(self, reasons: Mapping[int, str]) -> None:
        """Raise NoGradient if one of these inputs is present."""
        for index, reason in reasons.items():
            if self.optional(index) is not None:
                raise self.refusal(reason)

    def constant(self, index: int) -> np.ndarray | None:
        """The contents of a constant input; ``None`` if it is not constant, or omitted."""
        return self.cx.constant(self.optional(index))

    def ints(self, index: int) -> tuple[int, ...] | None:
        """The contents of a small integer input; ``None`` if they are unknown."""
        return self.cx.static_ints(self.optional(index))

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dims of ``value``, ints or expressions; ``None`` if the rank is unknown."""
        return self.cx.shape(value)

    def rank(self, value: ir.Value) -> int:
        """The number of axes of ``value``.

        Raises:
            NoGradient: the rank is unknown.
        """
        rank = self.cx.rank(value)
        if rank is None:
            raise self.unknown("rank", value, self.cx.rank)
        return rank

    def dtype(self, value: ir.Value) -> ir.DataType:
        """The element type of ``value``.

        Raises:
            NoGradient: the element type is unknown.
        """
        dtype = self.cx.dtype(value) or value.dtype
        if dtype is None:
            raise self.unknown("element type", value, self.cx.dtype)
        return dtype

    def unknown(self, what: str, value: ir.Value, lookup: Callable[[ir.Value], object]) -> NoGradient:
        """The refusal for a value of unknown rank or element type, with the operator where inference stops.

        Args:
            lookup: returns the rank or element type of a value, or ``None``.
        """
        producer = value.producer()
        while producer is not None:
            before = next((x for x in producer.inputs if x is not None and lookup(x) is None), None)
            if before is None:
                break
            value, producer = before, before.producer()
        of = "" if producer is None else f", the result of {qualified(producer.domain, producer.op_type)},"
        return self.refusal(f"the {what} of {value.name!r}{of} is unknown")

    def refusal(self, reason: str, *, hint: str | None = None) -> NoGradient:
        """An exception for a gradient that can't be computed: ``raise node.refusal("…")``."""
        return NoGradient(qualified(self.raw.domain, self.raw.op_type), self.label, reason, hint=hint)
