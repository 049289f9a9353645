"""Nothing depends on the order of a set: it changes from one run to the next.

Looked for are loops, comprehensions and the like over what is seen to be a set: a set display, a call of
``set`` or ``frozenset``, and names, attributes and functions of the same file that are annotated or made as one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import graphopt

ROOT = Path(graphopt.__file__).parent

_SETS = re.compile(r"(set|frozenset|AbstractSet|MutableSet)\b")
#: Calls that keep the order of their argument.
_ORDERED = {
    "list",
    "tuple",
    "enumerate",
    "iter",
    "next",
    "zip",
    "map",
    "filter",
    "fromkeys",
    "join",
    "extend",
}
#: Calls that accept a generator and do not depend on its order.
_UNORDERED = {"set", "frozenset", "sorted", "any", "all", "min", "max", "len"}


def _called(node: ast.AST) -> str:
    """The last part of the name of the called function."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _name(node: ast.AST) -> str:
    """``x``, or ``.x`` for an attribute of any object."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _annotated(annotation: ast.expr | None) -> bool:
    return annotation is not None and _SETS.match(ast.unparse(annotation)) is not None


class _Sets:
    """The sets of one file: attributes and functions anywhere, names within ``part``."""

    def __init__(self, functions: set[str], attributes: set[str], part: ast.AST) -> None:
        self._functions = functions
        self._names = set(attributes)
        for node in ast.walk(part):
            if isinstance(node, ast.AnnAssign) and _annotated(node.annotation):
                self._names.add(_name(node.target))
            elif isinstance(node, ast.arg) and _annotated(node.annotation):
                self._names.add(node.arg)
            elif isinstance(node, ast.Assign) and self.holds(node.value):
                self._names |= {_name(target) for target in node.targets} - {""}

    def holds(self, node: ast.AST) -> bool:
        """Whether ``node`` is provably a set."""
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
            return self.holds(node.left) or self.holds(node.right)
        if isinstance(node, ast.Call):
            return _called(node) in {"set", "frozenset", *self._functions}
        return _name(node) in self._names


def _ordered(tree: ast.AST) -> Iterator[ast.expr]:
    """The iterations of ``tree`` whose order may be visible."""
    harmless = {arg for node in ast.walk(tree) if _called(node) in _UNORDERED for arg in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and node not in harmless:
            yield from (part.iter for part in node.generators)
        elif isinstance(node, ast.Starred):
            yield node.value
        elif _called(node) in _ORDERED:
            yield from node.args[:1] if _called(node) == "fromkeys" else node.args


def _parts(tree: ast.AST) -> Iterator[ast.AST]:
    """The functions of a file and of its classes, and its other statements."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _parts(node)
        else:
            yield node


def _offences(text: str) -> list[int]:
    """The line of each expression that may depend on the order of a set."""
    tree = ast.parse(text)
    functions, attributes = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _annotated(node.returns):
            functions.add(node.name)
        elif isinstance(node, ast.AnnAssign) and _annotated(node.annotation):
            attributes.add(f".{_name(node.target).lstrip('.')}")
    found = []
    for part in _parts(tree):
        sets = _Sets(functions, attributes, part)
        found += [node.lineno for node in _ordered(part) if sets.holds(node)]
    return sorted(found)


def test_no_iteration_over_sets() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        for line in _offences(path.read_text())
    ]
    assert not found, "keep a dict, or sort"


def test_iterations_over_sets_are_detected() -> None:
    text = """
def names() -> frozenset[str]: ...
def look(a: set[int], b: list[int]):
    c = set(b)
    self.d: set[int] | None = None
    for x in a: pass
    for x in b: pass
    return [x for x in c], list(a | c), ", ".join(names()), (*self.d,), {k: 1 for k in {1, 2}}
def other(a: list[int], c: set[int]):
    for x in a: pass
    return sorted(c), any(x for x in c), {x for x in c}, set(names()), 1 in self.d, dict.fromkeys(a, frozenset())
"""
    assert _offences(text) == [6, *[8] * 5]
