"""Expressions over the names of dims, such as ``past + seq``, in declarations of models and in options."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping
from typing import Any

#: Maximum length of an expression, in characters: longer ones would exceed the depth of Python's stack.
_MAX_LENGTH = 400


def expression(dim: str, sizes: Mapping[str, Any]) -> Any:
    """The value of an expression such as ``past + 1``, over sizes of any type that supports the operators.

    Raises:
        KeyError: a name in ``dim`` has no size, or ``dim`` is not an arithmetic expression.
        TypeError: a divisor is not a number.
    """

    def value(tree: ast.expr | None) -> Any:
        match tree:
            case ast.Constant(value=int() | float() as size) if _is_size(size):
                return int(size)
            case ast.Name():
                return sizes[tree.id]
            case ast.BinOp() if type(tree.op) in _OPERATORS:
                return _OPERATORS[type(tree.op)](value(tree.left), value(tree.right))
        raise KeyError(dim)

    return value(_parse(dim))


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // max(b, 1),
    ast.Div: lambda a, b: a // max(b, 1),
}


def _parse(text: str) -> ast.expr | None:
    if len(text) > _MAX_LENGTH:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two for deep parentheses
        return None


def _is_size(number: object) -> bool:
    """Whether ``number`` is an integer, perhaps written as 2.0; 0.5, as a factor, makes no integer size."""
    if isinstance(number, float):
        return number.is_integer()
    return isinstance(number, int) and not isinstance(number, bool)


def is_expression(text: str, names: Container[str]) -> bool:
    """Whether dim ``text``, such as ``past + 1``, is an expression over other dims."""
    tree = _parse(text)
    if not isinstance(tree, ast.BinOp):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            if type(node.op) not in _OPERATORS:
                return False
        elif isinstance(node, ast.Name):
            if node.id not in names:
                return False
        elif isinstance(node, ast.Constant):
            if not _is_size(node.value):
                return False
        elif not isinstance(node, ast.operator | ast.expr_context):
            return False
    return True


def canonical_sum(text: str) -> str | None:
    """``text`` with uniform spaces; ``None`` unless it consists of names, numbers, ``+``, ``-`` and ``*``."""
    tree = _parse(text)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if type(node.value) is not int:
                return None
        elif not isinstance(node, ast.BinOp | ast.Name | ast.expr_context | ast.Add | ast.Sub | ast.Mult):
            return None
    return ast.unparse(tree)


def names_within(text: str) -> list[str]:
    """The names in an expression, in order of appearance."""
    tree = _parse(text)
    found = [] if tree is None else [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(found))


def with_name_replaced(text: str, name: str, right: str) -> str:
    """The dim ``text``, a name or an expression, with ``name`` replaced by the expression ``right``."""
    if text == name:
        return right
    tree = _parse(text)
    if tree is None or not isinstance(tree, ast.BinOp) or name not in names_within(text):
        return text
    return ast.unparse(_Renamed(name, right).visit(tree))


class _Renamed(ast.NodeTransformer):
    def __init__(self, name: str, right: str) -> None:
        self._name, self._right = name, right

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(self._right, mode="eval").body if node.id == self._name else node
