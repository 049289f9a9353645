"""Descriptions of passes: docstrings as plain text, and options with their meanings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from enum import Enum
from typing import Any

from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

_SECTION = re.compile(r"^(Attributes|Raises):$", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """An option of a pass.

    Attributes:
        name: the name in pipeline text.
        type: the annotation.
        default: the default value; the name for an enumeration.
        meaning: its description in the docstring of the pass; ``""`` without any.
    """

    name: str
    type: str
    default: Any
    meaning: str

    @property
    def default_text(self) -> str:
        """The default in pipeline text; ``none`` for an empty one."""
        if isinstance(self.default, tuple):
            return "+".join(map(str, self.default)) or "none"
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default) or "none"


def prose(item: Any) -> str:
    """The docstring of a pass or a function without its sections, with names in single backticks."""
    text = inspect.cleandoc(item.__doc__ or "")
    return _SECTION.split(text)[0].strip().replace("``", "`")


def options_of(kind: type[Pass]) -> list[Option]:
    """The options of a pass, in order."""
    meanings = _meanings(inspect.cleandoc(kind.__doc__ or ""))
    return [
        Option(
            field.name.replace("_", "-"), str(field.type), _named(field.default), meanings.get(field.name, "")
        )
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    ]


def _named(value: Any) -> Any:
    return value.name.lower() if isinstance(value, Enum) else value


def _meanings(text: str) -> dict[str, str]:
    """The descriptions in the section on attributes, by name."""
    parts = _SECTION.split(text)
    section = parts[parts.index("Attributes") + 1] if "Attributes" in parts else ""
    found: dict[str, str] = {}
    for names, meaning in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
        words = " ".join(meaning.split()).replace("``", "`")
        found |= dict.fromkeys(re.split(r",\s*", names), words)
    return found
