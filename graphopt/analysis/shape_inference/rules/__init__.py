# mypy: implicit-reexport
"""Shape rules, one file per family of operators; the registry walks this package."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from graphopt.analysis.shape_inference.node_facts import ShapeRule


@cache
def shape_rules() -> dict[tuple[str, str], ShapeRule]:
    """The shape rules of this package by ``(domain, op_type)``.

    Raises:
        ValueError: an operator has two rules.
    """
    found: dict[tuple[str, str], ShapeRule] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for item in vars(module).values():
            if getattr(item, "__module__", None) != module.__name__:
                continue
            for key in getattr(item, "shape_rule_for", ()):
                if found.setdefault(key, item) is not item:
                    raise ValueError(f"two shape rules for {key}")
    return found
