"""Conventions on imports and the environment; `make lint` checks the layers of packages by import-linter."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import graphopt

ROOT = Path(graphopt.__file__).parent


def test_only_the_ir_imports_onnx_ir() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.rglob("*.py"))
        if any(
            isinstance(node, (ast.Import, ast.ImportFrom)) and "onnx_ir" in ast.unparse(node).split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
        )
        and path.relative_to(ROOT).parts[0] != "ir"
    ]
    assert offenders == []


def test_the_environment_is_read_in_config_only() -> None:
    reads = re.compile(r"\b(os\.environ|os\.getenv|from os import .*\b(environ|getenv))\b")
    offenders = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.rglob("*.py"))
        if reads.search(path.read_text()) and path != ROOT / "config.py"
    ]
    assert offenders == []


def test_dataclasses_compile_their_constructor_on_first_use() -> None:
    below_util = {"errors.py", "numerics.py", "publish"}  # layers that may not import it
    offenders = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in below_util
        for name in _standard_dataclasses(ast.parse(path.read_text()))
    ]
    assert offenders == []


def _standard_dataclasses(module: ast.Module) -> list[str]:
    """Names of classes by the standard library's decorator that lazy_dataclass could decorate.

    Classes with ``order=True`` are missing, because lazy_dataclass compares for equality only.
    """
    standard = {"dataclasses.dataclass"}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
            standard |= {one.asname or one.name for one in node.names if one.name == "dataclass"}
    found = []
    for node in ast.walk(module):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            called = isinstance(decorator, ast.Call)
            options = {one.arg for one in decorator.keywords} if called else set()
            name = ast.unparse(decorator.func if called else decorator)
            if name in standard and "order" not in options:
                found.append(node.name)
    return found


def test_each_class_needs_its_own_reason_for_the_standard_decorator() -> None:
    text = """
from dataclasses import dataclass
@dataclass(order=True)
class Ordered: ...
@dataclass(frozen=True)
class Frozen: ...
@dataclasses.dataclass
class Plain: ...
"""
    assert _standard_dataclasses(ast.parse(text)) == ["Frozen", "Plain"]
