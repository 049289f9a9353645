"""Commands for fresh Python interpreters with the same search path as this process."""

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
    """``sys.path`` without entries that are not text, such as ``Path`` objects, which Python ignores."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def command(module: str, function: str, arguments: Sequence[Any]) -> list[str]:
    """The command line of an interpreter that runs a function.

    Nothing is imported from the working directory, unless this process also imports from there.

    Args:
        arguments: its arguments, which must be JSON.

    Raises:
        OSError: this process has no interpreter, because it embeds or bundles Python.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise FileNotFoundError("this program has no Python interpreter of its own")
    boot = _BOOT.format(module=module, function=function)
    return [sys.executable, "-P", "-c", boot, json.dumps(search_path()), json.dumps(list(arguments))]
