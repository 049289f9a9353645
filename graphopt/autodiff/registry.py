"""``@gradient``: what an operator's gradient is, and which operators have none.

>>> @gradient("Mul", broadcasts=True)                                  # doctest: +SKIP
... def mul(op, node, dy):
...     a, b = node.inputs
...     return op.Mul(dy, b), op.Mul(dy, a)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.util.extensions import extensions

#: The package that is walked.
_PACKAGE = "graphopt.autodiff.rules"


class NeedsOpset(Exception):
    """A gradient is written with operators of a newer opset, to which the model is converted first."""

    def __init__(self, version: int) -> None:
        super().__init__(f"opset {version} is needed")
        self.version = version


class IncompleteGradient(UserWarning):
    """Gradients leave out what an operator on the way does to numbers, and may differ from true slopes."""


class NoGradient(UnsupportedModel):
    """A gradient that was asked for leads through an operator that has none.

    Attributes:
        op: the operator, with its domain if that is not the standard's.
        node: the name of the node.
        reason: why, in a few words.
    """

    def __init__(self, op: str, node: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"no gradient through {op} ({node}): {reason}", hint=hint)
        self.op = op
        self.node = node
        self.reason = reason


class UnknownType(UnsupportedModel):
    """An element type that a gradient needs is unknown."""

    def __init__(self, value: ir.Value) -> None:
        super().__init__(f"no gradient: the element type of {value.name!r} is unknown")
        self.value = value


@dataclass(frozen=True)
class StoppedGradient:
    """A node on the way that lets no gradient through, or only a part of it.

    Attributes:
        op: the operator.
        node: the node.
        reason: why, in a few words.
        partly: whether a part flows through it, so that gradients are incomplete.
    """

    op: str
    node: str
    reason: str
    partly: bool = False


@dataclass(frozen=True)
class Gradient:
    """The gradient of some operators.

    Attributes:
        ops: the operators, as ``Mul`` or ``com.microsoft::Gelu``.
        function: takes ``op``, which writes nodes, the forward ``node`` and the gradients of its outputs
            (``None`` for those that are zero). Returns the gradients of its inputs in their order (those
            left out, and ``None``, are zero), or of any values that it or its bodies read, as a mapping.
        since, before: the opset versions of the operator's domain for which it holds.
        broadcasts: the function's results are of the output's shape, and the inputs broadcast to that:
            what was broadcast is summed up again.
    """

    ops: tuple[str, ...]
    function: Callable[..., Any]
    since: int = 1
    before: int | None = None
    broadcasts: bool = False

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def holds_for(self, version: int) -> bool:
        """Whether this is the gradient at opset ``version``."""
        return self.since <= version and (self.before is None or version < self.before)


@dataclass(frozen=True)
class NonDifferentiable:
    """Operators through which no gradient flows: it is zero, or nobody asks for it.

    Attributes:
        ops: the operators.
        because: why, in a few words.
        quiet: nobody would expect a gradient, so that it is not worth a remark.
    """

    ops: tuple[str, ...]
    reason: str
    quiet: bool = False

    def holds_for(self, version: int) -> bool:
        """Whether this holds at opset ``version``."""
        return True


def gradient(
    *ops: str, since: int = 1, before: int | None = None, broadcasts: bool = False
) -> Callable[[Callable[..., Any]], Gradient]:
    """Declare a function to be the gradient of ``ops``; see :class:`Gradient`."""

    def declare(function: Callable[..., Any]) -> Gradient:
        return Gradient(ops, function, since, before, broadcasts)

    return declare


def non_differentiable(*ops: str, reason: str, quiet: bool = False) -> NonDifferentiable:
    """Declare that no gradient flows through ``ops``; the result has to be a name of the module."""
    return NonDifferentiable(ops, reason, quiet)


@cache
def all_gradients() -> dict[str, tuple[Gradient | NonDifferentiable, ...]]:
    """By family, what is known of operators; what other packages add comes last.

    They name modules as entry points of the group ``graphopt.gradients``.
    """
    package = importlib.import_module(_PACKAGE)
    found: dict[str, tuple[Gradient | NonDifferentiable, ...]] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if not info.name.startswith("_"):
            found[info.name] = tuple(_declared(importlib.import_module(f"{_PACKAGE}.{info.name}")))
    for module in extensions("graphopt.gradients"):
        found[module.__name__] = tuple(_declared(module))
    return found


def _declared(module: Any) -> Iterator[Gradient | NonDifferentiable]:
    for item in vars(module).values():
        own = isinstance(item, Gradient) and item.function.__module__ == module.__name__
        if own or isinstance(item, NonDifferentiable):
            yield item


def find(domain: str, op_type: str, version: int) -> Gradient | NonDifferentiable | None:
    """What is known of an operator's gradient at opset ``version`` of its domain."""
    for item in _by_operator().get(spelt(domain, op_type), ()):
        if item.holds_for(version):
            return item
    return None


def spelt(domain: str, op_type: str) -> str:
    """An operator as gradients name it."""
    return f"{domain}::{op_type}" if domain else op_type


@cache
def _by_operator() -> dict[str, list[Gradient | NonDifferentiable]]:
    found: dict[str, list[Gradient | NonDifferentiable]] = {}
    for items in all_gradients().values():
        for item in items:
            for op in item.ops:
                found.setdefault(op, []).append(item)
    return found
