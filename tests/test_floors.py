"""The house has floors: a file imports from its own floor or from those before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import graphopt

ROOT = Path(graphopt.__file__).parent

#: From the ground up. A name is a module or a package of graphopt, or a module of such a package that
#: belongs on a floor of its own.
FLOORS = [
    "numerics",
    "errors",
    "publish",
    "util",
    "options",
    "util.arguments",
    "config",
    "process",
    "ir",
    "models",
    "modeldiff",
    "ops",
    "opset",
    "profile",
    "analysis",
    "ort",
    "inputs",
    "folding",
    "verification",
    "timing",
    "cost",
    "context",
    "rewrite",
    "rules",
    "control_flow",
    "passes",
    "instrument",
    "transforms.functions",
    "own_rules",
    "attempt",
    "parameters",
    "autodiff",
    "partitioning",
    "fusion",
    "transforms",
    "debug",
    "tuning",
    "specialization",
    "executor",
    "training",
    "compiler",
    "api",
    "cli",
]


def _imports(path: Path, package: str) -> list[str]:
    """The parts of ``package`` that the file at ``path`` imports; imports for type checkers only do not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    inside = f"{package}."
    return [name.removeprefix(inside) for name in modules if name.startswith(inside)]


def _floor(name: str, floors: list[str]) -> str:
    """The floor of the module ``name``: that of its longest prefix that has one."""
    parts = name.split(".")
    prefixes = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in floors), parts[0])


def test_imports_stay_on_their_floor_or_go_before_it() -> None:
    root, package, floors = ROOT, "graphopt", FLOORS
    offences = []
    for path in sorted(root.rglob("*.py")):
        floor = _floor(".".join(path.relative_to(root).with_suffix("").parts), floors)
        if floor == "__init__" or floor == "__main__":
            continue
        assert floor in floors, f"{path} stands on no floor"
        for name in (_floor(name, floors) for name in _imports(path, package)):
            if floors.index(name) > floors.index(floor):
                offences.append(f"{path.relative_to(root)} imports {name}")
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
