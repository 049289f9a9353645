"""Code that pages show, read from the tree, as the lines that a change would add.

A page lists files between ``<!-- begin code`` and ``-->``; the diff follows, up to ``<!-- end code -->``::

    <!-- begin code
    graphopt/rules/arithmetic.py :: swap_difference
    tests/rules/cases/arithmetic/swap-difference.txt
    docs/cli.md ~ graphopt diff A B
    -->

``PATH`` is a whole file, ``PATH :: NAME`` a definition at the top level or in a class (``Class.name``), with
its decorators and comments, ``PATH ~ TEXT`` the first line that contains the text.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SECTION = re.compile(r"^<!-- begin code\n(.*?)^-->\n.*?^<!-- end code -->$", re.DOTALL | re.MULTILINE)


def page(path: Path) -> str:
    """The text of a page with its code as it is in the tree."""
    return _SECTION.sub(_section, path.read_text(encoding="utf-8"))


def _section(match: re.Match[str]) -> str:
    parts: dict[str, list[str]] = {}
    for line in match[1].splitlines():
        path, lines = lines_of(line)
        parts.setdefault(path, []).extend(lines)
    files = [
        f"+++ {path}\n" + "".join(f"+{line}".rstrip() + "\n" for line in lines)
        for path, lines in parts.items()
    ]
    added = sum(map(len, parts.values()))
    count = f"*{len(parts)} file{'s' * (len(parts) > 1)}, {added} line{'s' * (added > 1)}.*"
    code = "".join(files)
    return f"<!-- begin code\n{match[1]}-->\n```diff\n{code}```\n\n{count}\n<!-- end code -->"


def lines_of(spec: str) -> tuple[str, list[str]]:
    """The path that ``spec`` names, and the lines.

    Raises:
        ValueError: there are none.
    """
    name, mark, selector = re.fullmatch(r"(\S+)(?: (::|~) (.+))?", spec.strip()).groups()  # type: ignore[union-attr]
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    if mark is None:
        return name, lines
    if mark == "~":
        found = [line for line in lines if selector in line][:1]
    else:
        found = _definition(lines, selector.split("."))
    if not found:
        raise ValueError(f"{name} has no {selector!r}")
    return name, found


def _definition(lines: list[str], names: list[str]) -> list[str]:
    body: list[ast.stmt] = ast.parse("\n".join(lines)).body
    node: ast.stmt | None = None
    for name in names:
        node = next((one for one in body if name in _defined(one)), None)
        if node is None:
            return []
        body = getattr(node, "body", [])
    assert node is not None
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return lines[first : node.end_lineno]


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]
