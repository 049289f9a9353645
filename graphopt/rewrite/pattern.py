"""Patterns of rules, written as Python functions over ``op``.

``lambda op, x, p, q: op.Transpose(op.Transpose(x, perm=p), perm=q)`` is called once, with a builder and one
variable per further parameter. Operators become :class:`OpPattern`; operands and attributes match as follows:

- a variable binds a value (as an operand) or an attribute's Python value (as a keyword);
  a variable used twice must match the same value;
- ``x.optional()`` also matches a missing input, as ``None``; ``xs.rest()`` binds all inputs from
  there on, as a tuple; ``c.constant()`` binds only a constant;
- a number as operand matches a tensor, constant or not, if all elements are known to equal the number
  (-0.0 is not 0.0);
- ``op.Split(x, outputs=2)`` returns a tuple of two patterns; ``op.one_of("Add", "Sub")(x, y)``
  matches several operators; ``op.domain("com.microsoft").Gelu(x)`` an operator of another domain;
- ``tag="conv"`` names the matched node for ``m.node("conv")``.

A function that yields patterns describes alternatives.

Commutative operators match their two inputs in either order. An attribute that the pattern does not name
may have any value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from types import CodeType
from typing import Any

from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Var:
    """A variable of a pattern."""

    name: str
    kind: str = "value"  # value | optional | rest | constant

    def optional(self) -> Var:
        """Also match a missing input."""
        return Var(self.name, "optional")

    def rest(self) -> Var:
        """Match all inputs from here on."""
        return Var(self.name, "rest")

    def constant(self) -> Var:
        """Match only a constant."""
        return Var(self.name, "constant")


@dataclass(frozen=True)
class Literal:
    """A tensor whose elements are all known to equal ``number``."""

    number: float


@dataclass(frozen=True, eq=False)
class OpPattern:
    """A node: its operator, operands and named attributes."""

    domain: str
    op_types: tuple[str, ...]
    operands: tuple[Operand, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int | None = None
    tag: str | None = None

    @cached_property
    def needs(self) -> tuple[tuple[int, tuple[str, ...] | None], ...]:
        """Required producers of the operands, for a cheap test that excludes most nodes.

        Pairs of an operand's index and the operators that may produce it; ``None`` for a number.
        """
        found: list[tuple[int, tuple[str, ...] | None]] = []
        for index, operand in enumerate(self.operands):
            match operand:
                case OpPattern():
                    found.append((index, operand.op_types))
                case OutputPattern():
                    found.append((index, operand.node.op_types))
                case Literal():
                    found.append((index, None))
        return tuple(found)

    @property
    def below(self) -> tuple[OpPattern, ...]:
        """The nodes that are its operands."""
        operands = (item.node if isinstance(item, OutputPattern) else item for item in self.operands)
        return tuple(item for item in operands if isinstance(item, OpPattern))

    @cached_property
    def nodes(self) -> tuple[OpPattern, ...]:
        """All nodes of the pattern with this root, the root first, each once."""
        found: dict[OpPattern, None] = {}
        pending: list[OpPattern] = [self]
        while pending:
            current = pending.pop()
            found.setdefault(current)
            pending.extend(node for node in reversed(current.below) if node not in found)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class OutputPattern:
    """Output ``index`` of a node."""

    node: OpPattern
    index: int


Operand = Var | Literal | OpPattern | OutputPattern


class _Operators:
    """``op``: each attribute is an operator of one domain."""

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return self.one_of(op_type)

    def domain(self, domain: str) -> _Operators:
        """Operators of another domain."""
        return _Operators(domain)

    def one_of(self, *op_types: str) -> Callable[..., Any]:
        """Any of several operators."""

        def build(
            *operands: Any, outputs: int | None = None, tag: str | None = None, **attributes: Any
        ) -> Any:
            node = OpPattern(self._domain, op_types, tuple(map(_operand, operands)), attributes, outputs, tag)
            if outputs is None:
                return node
            return tuple(OutputPattern(node, index) for index in range(outputs))

        return build


def _operand(item: Any) -> Operand:
    if isinstance(item, (Var, OpPattern, OutputPattern)):
        return item
    if isinstance(item, (int, float)):
        return Literal(item)
    raise TypeError(f"{item!r} can't be an operand of a pattern")


def build(function: Callable[..., Any]) -> tuple[OpPattern, tuple[str, ...]]:
    """The root node of the pattern that ``function`` describes, and its variables' names."""
    (pattern,) = alternatives(function)
    return pattern


def alternatives(function: Callable[..., Any]) -> list[tuple[OpPattern, tuple[str, ...]]]:
    """The root nodes of the patterns that ``function`` returns or yields, and the names of its variables."""
    code: CodeType = function.__code__  # inspect.signature is slow
    names = code.co_varnames[1 : code.co_argcount]
    result = function(_Operators(), *(Var(name) for name in names))
    return [(_root(one), names) for one in (result if inspect.isgenerator(result) else [result])]


def _root(root: Any) -> OpPattern:
    if isinstance(root, tuple):
        root = root[0]
    if isinstance(root, OutputPattern):
        root = root.node
    if not isinstance(root, OpPattern):
        raise TypeError("a pattern must end in an operator")
    return root
