"""The house has floors: a file imports from its own floor or from those before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import graphopt

ROOT = Path(graphopt.__file__).parent

#: From the ground up. A name is a module or a package of graphopt.
FLOORS = [
    "numerics",
    "errors",
    "coerce",
    "tables",
    "budget",
    "config",
    "store",
    "ir",
    "ops",
    "runtime",
    "context",
    "analysis",
    "rewrite",
    "rules",
    "passes",
    "instrument",
    "pipelines",
    "driver",
    "debug",
    "tune",
    "api",
    "cli",
]


def _imports(path: Path) -> list[str]:
    """The floors that the file at ``path`` imports from; imports for type checkers only do not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "graphopt":
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("graphopt."):
            found.append(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found += [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("graphopt.")]
    return found


def test_imports_stay_on_their_floor_or_go_before_it() -> None:
    offences = []
    for path in sorted(ROOT.rglob("*.py")):
        floor = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if floor == "__init__" or floor == "__main__":
            continue
        assert floor in FLOORS, f"{path} stands on no floor"
        for name in _imports(path):
            if FLOORS.index(name) > FLOORS.index(floor):
                offences.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not offences


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
