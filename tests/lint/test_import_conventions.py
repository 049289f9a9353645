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
    own = re.compile(r"^from dataclasses import .*\bdataclass\b|^@dataclasses\.dataclass", re.MULTILINE)
    offenders = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in below_util
        and own.search(path.read_text())
        and "order=True" not in path.read_text()  # lazy_dataclass compares for equality only
    ]
    assert offenders == []
