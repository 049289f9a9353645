"""Extension of griffe: functions that are made at run time, and Markdown for references and examples."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import graphopt

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?(?:graphopt\.)?([\w.]+)`")
_EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)
_SKIP = re.compile(r" *# doctest: \+SKIP$", re.MULTILINE)


class Runtime(griffe.Extension):
    """Document the functions of :mod:`graphopt.api` that are methods of a compiler."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace attributes by the functions that they are."""
        module = pkg["api"]
        for name, member in list(module.members.items()):
            value = getattr(graphopt.api, name, None) if isinstance(member, griffe.Attribute) else None
            if inspect.isfunction(value):
                module.set_member(name, _function(name, value))


def _function(name: str, value: Any) -> griffe.Function:
    signature = inspect.signature(value)
    parameters = [
        griffe.Parameter(
            one.name,
            annotation=str(one.annotation),
            kind=_KINDS[one.kind],
            default=None if one.default is one.empty else repr(one.default),
        )
        for one in signature.parameters.values()
    ]
    text = _markdown(inspect.getdoc(value) or "")
    return griffe.Function(
        name,
        parameters=griffe.Parameters(*parameters),
        returns=str(signature.return_annotation),
        docstring=griffe.Docstring(text, parser="google", parser_options={"warnings": False}),
    )


_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class Markdown(griffe.Extension):
    """Turn ``:func:`save``` into a link, and fence examples, without their directives for doctest."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = _markdown(obj.docstring.value)


def _markdown(text: str) -> str:
    return _ROLE.sub(_linked, _EXAMPLE.sub(r"```pycon\n\g<0>\n```", _SKIP.sub("", text)))


def _linked(role: re.Match[str]) -> str:
    name = role[1]
    kind = getattr(getattr(graphopt, name, None), "__module__", "") if name in graphopt.__all__ else ""
    return f"[`{name}`][graphopt.{name}]" if kind.startswith("graphopt") else f"`{name}`"
