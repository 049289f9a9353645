"""Extension of griffe: Markdown for references and examples in docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

import graphopt

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?(?:graphopt\.)?([\w.]+)`")
_EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)
_SKIP = re.compile(r" *# doctest: \+SKIP$", re.MULTILINE)


class Markdown(griffe.Extension):
    """Turn ``:func:`save``` into a link, and fence examples, without their directives for doctest."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``, if it has one."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", _SKIP.sub("", obj.docstring.value))
            obj.docstring.value = _ROLE.sub(_linked, text)


def _linked(role: re.Match[str]) -> str:
    name = role[1]
    kind = getattr(getattr(graphopt, name, None), "__module__", "") if name in graphopt.__all__ else ""
    return f"[`{name}`][graphopt.{name}]" if kind.startswith("graphopt") else f"`{name}`"
