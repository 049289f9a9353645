"""``node`` in a gradient function: the node that is differentiated, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.registry import NoGradient, spelt
from graphopt.context import Context, Dim
from graphopt.ops import traits


class PrimalNode:
    """A node of the forward graph, as gradient functions see it.

    Attributes:
        raw: the node itself.
        cx: facts about values (``node.cx.shape(x)``), for those that need more than the shortcuts here.
        inputs: what it reads; ``None`` for inputs that are left out.
        outputs: what it computes.
        captured: what its bodies read of the graphs around them.
    """

    def __init__(
        self,
        raw: ir.Node,
        cx: Context,
        reached: Container[ir.Value],
        needed: Container[ir.Value],
    ) -> None:
        self.raw = raw
        self.cx = cx
        self.inputs: tuple[ir.Value | None, ...] = tuple(raw.inputs)
        self.captured: tuple[ir.Value, ...] = tuple(ir.captured(raw)) if raw.attributes else ()
        self._reached = reached
        self._needed = needed

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """What the node computes, with outputs that were added on the way."""
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
        """How the node is called in messages, and what names of nodes made for it begin with."""
        return ir.label(self.raw)

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.cx.version(self.raw)

    def input(self, index: int) -> ir.Value:
        """An input that can't be left out.

        Raises:
            NoGradient: it is left out.
        """
        value = self.optional(index)
        if value is None:
            raise self.refusal(f"input {index} is left out")
        return value

    def optional(self, index: int) -> ir.Value | None:
        """An input, or ``None`` if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int) -> ir.Value:
        """An output, which the node gets if it lacks it, so that the gradient may read it."""
        if index >= len(self.raw.outputs) or not self.raw.outputs[index].name:
            self.cx.edit.give_output(self.raw, index)
        return self.raw.outputs[index]

    def needs_grad(self, index: int) -> bool:
        """Whether the gradient of an input is asked for; work for others is thrown away."""
        value = self.optional(index)
        return value is not None and value in self._reached

    def needs_grad_of(self, value: ir.Value) -> bool:
        """Whether the gradient of ``value``, such as one that a body captures, is asked for."""
        return value in self._reached

    def is_useful(self, value: ir.Value) -> bool:
        """Whether what is differentiated depends on ``value``, whether or not it has a gradient."""
        return value in self._needed

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value; else the standard's default; else ``default``."""
        found = self.raw.attributes.get(name)
        if found is not None and not found.is_ref():
            return tuple(found.value) if isinstance(found.value, list) else found.value
        standard = traits.default_attribute(self.raw.domain, self.raw.op_type, self.version, name)
        return default if standard is None else standard

    def constant(self, index: int) -> np.ndarray | None:
        """The contents of an input that is constant; ``None`` if it is not, or left out."""
        return self.cx.constant(self.optional(index))

    def ints(self, index: int) -> tuple[int, ...] | None:
        """The contents of an input that is a small integer tensor and known; ``None`` if they are not."""
        return self.cx.static_ints(self.optional(index))

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dims of ``value``, ints or expressions; ``None`` if the rank is unknown."""
        return self.cx.shape(value)

    def rank(self, value: ir.Value) -> int:
        """The number of dims of ``value``.

        Raises:
            NoGradient: it is unknown.
        """
        rank = self.cx.rank(value)
        if rank is None:
            raise self.unknown("rank", value, self.cx.rank)
        return rank

    def dtype(self, value: ir.Value) -> ir.DataType:
        """The element type of ``value``.

        Raises:
            NoGradient: it is unknown.
        """
        dtype = self.cx.dtype(value) or value.dtype
        if dtype is None:
            raise self.unknown("element type", value, self.cx.dtype)
        return dtype

    def unknown(self, what: str, value: ir.Value, known: Callable[[ir.Value], object]) -> NoGradient:
        """The refusal for want of the rank or element type of ``value``, which names where it is lost.

        Args:
            known: tells it of any value, or ``None``.
        """
        maker = value.producer()
        while maker is not None:
            before = next((x for x in maker.inputs if x is not None and known(x) is None), None)
            if before is None:
                break
            value, maker = before, before.producer()
        of = "" if maker is None else f", which {spelt(maker.domain, maker.op_type)} computes,"
        return self.refusal(f"the {what} of {value.name!r}{of} is unknown")

    def refusal(self, reason: str, *, hint: str | None = None) -> NoGradient:
        """To be raised where the gradient is asked for and can't be told: ``raise node.refusal("…")``."""
        return NoGradient(spelt(self.raw.domain, self.raw.op_type), self.label, reason, hint=hint)
