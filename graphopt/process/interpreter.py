"""Fresh Python interpreters that import graphopt as this process does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from {module} import {function} as start; start(*json.loads(sys.argv[2]))"
)


def search_path() -> list[str]:
    """``sys.path`` without entries that Python ignores, which are not text, such as ``Path`` objects."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def command(module: str, function: str, arguments: Sequence[Any]) -> list[str]:
    """The command of an interpreter that runs a function.

    Nothing is imported from the working directory, unless this process does that too.

    Args:
        module, function: the function.
        arguments: its arguments, which are JSON.

    Raises:
        OSError: this process has no interpreter: it is an application that embeds or bundles Python.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise FileNotFoundError("this program has no Python interpreter of its own")
    boot = _BOOT.format(module=module, function=function)
    return [sys.executable, "-P", "-c", boot, json.dumps(search_path()), json.dumps(list(arguments))]
