"""Hints of errors, as callers of the Python functions read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphopt
from graphopt.optimize_options import OPTIONS
from graphopt.util.option_table import with_keywords

PACKAGE = Path(graphopt.__file__).parent
#: Commands in hints, which callers of functions may run, too.
COMMAND = re.compile(r"(graphopt [a-z]+|python -m|optimum-cli|sh -c|mkdir|curl).*")


def texts(node: ast.AST) -> Iterator[str]:
    """The strings in an expression, with ``X`` for values of f-strings."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def hints() -> Iterator[str]:
    """The hints of errors in the library: arguments and variables that are called hint."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if "cli" in file.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                yield from texts(node.value)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(one, ast.Name) and "hint" in one.id.lower() for one in targets):
                    yield from texts(node.value)


def test_no_hint_has_a_flag_without_a_keyword() -> None:
    found = [*hints()]
    assert len(found) > 100 and any("--input-shape" in text for text in found)
    for text in found:
        spelled = COMMAND.sub("", with_keywords(text, OPTIONS))
        assert not re.search(r"(?<![\w-])--?[a-zA-Z]", spelled), text


@pytest.mark.parametrize(
    ("hint", "spelled"),
    [
        ("--dim B=1, --no-verify", "dims B=1, verify=False"),
        ("another folder: --set cache-dir=FOLDER", "another folder: config.patch(cache_dir=FOLDER)"),
        ("--set costs=auto, or --set seed=1", "config.patch(costs='auto'), or config.patch(seed=1)"),
        ("add -O3, or --fuser native", "add pipeline='O3', or fuser native"),
        (
            "give --input-shape NAME:1x3x224x224 or --input FILE.npz",
            "give inputs=InputOptions.parse(['NAME:1x3x224x224']) or inputs=InputOptions.parse(files=['FILE.npz'])",
        ),
        ("change --input, --input-shape or --dim", "change inputs or dims"),
        (
            "graphopt optimize MODEL -o OUT.onnx --fuser native writes one; --skip leaves it out",
            "graphopt optimize MODEL -o OUT.onnx --fuser native writes one; skip leaves it out",
        ),
        ("write into F, or --weights copy", "write into F, or weights='copy'"),
        ("--emit bundle supports them", "bundle=True supports them"),
    ],
)
def test_flags_are_spelled_as_keywords(hint: str, spelled: str) -> None:
    assert with_keywords(hint, OPTIONS) == spelled
