"""Declare and find gradient rules.

>>> @gradient("Mul", broadcasts=True)                                  # doctest: +SKIP
... def mul(op, node, dy):
...     a, b = node.inputs
...     return op.Mul(dy, b), op.Mul(dy, a)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.util.argument_checks import checked
from graphopt.util.entry_points import extensions
from graphopt.util.lazy_dataclass import dataclass

#: The result of a gradient rule: the cotangent of the first input, of the inputs in order, or of any values
#: that the node or its bodies read; ``None`` for zero.
Cotangents = ir.Value | Sequence[ir.Value | None] | Mapping[ir.Value, ir.Value] | None

#: The package whose modules declare gradient rules.
_PACKAGE = "graphopt.autodiff.rules"


class NeedsOpset(Exception):
    """A gradient uses operators of a newer opset; the model must be converted to that opset first."""

    def __init__(self, version: int) -> None:
        super().__init__(f"opset {version} is needed")
        self.version = version


class Restart(Exception):
    """Differentiation has to start again: the last attempt left an unusable model, but gained information."""


class IncompleteGradient(UserWarning):
    """A gradient ignores part of an operator's dependence on its inputs and may be wrong."""


class NoGradient(UnsupportedModel):
    """A requested gradient depends on an operator without a gradient.

    Attributes:
        op: the operator, with its domain unless that is the standard's.
        node: the name of the node.
        reason: a short reason.
    """

    def __init__(self, op: str, node: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"no gradient through {op} ({node}): {reason}", hint=hint)
        self.op = op
        self.node = node
        self.reason = reason


class UnknownType(UnsupportedModel):
    """A gradient requires an element type that is unknown."""

    def __init__(self, value: ir.Value) -> None:
        super().__init__(f"no gradient: the element type of {value.name!r} is unknown")
        self.value = value


@dataclass(frozen=True)
class StoppedGradient:
    """An active node through which the gradient flows only in part, or not at all.

    Attributes:
        op: the operator.
        node: the name of the node.
        reason: a short reason.
        partly: whether part of the gradient flows, so that gradients are incomplete.
    """

    op: str
    node: str
    reason: str
    partly: bool = False


@dataclass(frozen=True)
class Gradient:
    """The gradient rule of one or more operators: a vector-Jacobian product.

    Attributes:
        ops: the operators, such as ``Mul`` or ``com.microsoft::Gelu``.
        function: called with ``op``, a :class:`graphopt.autodiff.graph_builder.GraphBuilder`, the primal
            ``node`` and the cotangent of each of its outputs (``None`` for zero). Returns the cotangents of
            the inputs in order (``None`` and omitted ones are zero), or a mapping from values that the node
            or its bodies read to their cotangents.
        since, before: the range of opset versions of the operator's domain, ``before`` excluded.
        broadcasts: whether the inputs broadcast to the shape of the output and the results have that shape;
            the results are then summed over the broadcast axes.
    """

    ops: tuple[str, ...]
    function: Callable[..., Cotangents]
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
    """Operators whose gradient is zero or undefined.

    Attributes:
        ops: the operators.
        reason: a short reason.
        quiet: whether no gradient is expected, so that a node is not listed as a :class:`StoppedGradient`.
    """

    ops: tuple[str, ...]
    reason: str
    quiet: bool = False

    def holds_for(self, version: int) -> bool:
        """Whether this applies at opset ``version``: always true."""
        return True


@checked
def gradient(
    *ops: str, since: int = 1, before: int | None = None, broadcasts: bool = False
) -> Callable[[Callable[..., Cotangents]], Gradient]:
    """Declare a function as the gradient rule of ``ops``; see :class:`Gradient`."""

    def declare(function: Callable[..., Cotangents]) -> Gradient:
        return Gradient(ops, function, since, before, broadcasts)

    return declare


@checked
def non_differentiable(*ops: str, reason: str, quiet: bool = False) -> NonDifferentiable:
    """Declare that no gradient flows through ``ops``; assign the result to a name of the module."""
    return NonDifferentiable(ops, reason, quiet)


@cache
def all_gradients() -> dict[str, tuple[Gradient | NonDifferentiable, ...]]:
    """All declarations by family (module name), declarations of other packages last.

    Other packages register modules as entry points of the group ``graphopt.gradients``.
    """
    package = importlib.import_module(_PACKAGE)
    found: dict[str, tuple[Gradient | NonDifferentiable, ...]] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if not info.name.startswith("_"):
            found[info.name] = tuple(_declared(importlib.import_module(f"{_PACKAGE}.{info.name}")))
    for module in extensions("graphopt.gradients"):
        found[module.__name__] = tuple(_declared(module))
    return found


def _declared(module: ModuleType) -> Iterator[Gradient | NonDifferentiable]:
    for item in vars(module).values():
        own = isinstance(item, Gradient) and item.function.__module__ == module.__name__
        if own or isinstance(item, NonDifferentiable):
            yield item


def find(domain: str, op_type: str, version: int) -> Gradient | NonDifferentiable | None:
    """The declaration for an operator at opset ``version`` of its domain, if any."""
    for item in _by_operator().get(qualified(domain, op_type), ()):
        if item.holds_for(version):
            return item
    return None


def qualified(domain: str, op_type: str) -> str:
    """The name of the operator in rules: ``Mul``, or ``com.microsoft::Gelu`` outside the standard domain."""
    return f"{domain}::{op_type}" if domain else op_type


@cache
def _by_operator() -> dict[str, list[Gradient | NonDifferentiable]]:
    found: dict[str, list[Gradient | NonDifferentiable]] = {}
    for items in all_gradients().values():
        for item in items:
            for op in item.ops:
                found.setdefault(op, []).append(item)
    return found
