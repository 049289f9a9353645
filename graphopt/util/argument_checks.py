"""Checks of the arguments of public functions against their annotations, before a function runs.

An annotation, with its imports for type checkers, is evaluated at the first use of its argument.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import numbers
import re
import reprlib
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from graphopt.errors import unknown
from graphopt.util import option_table
from graphopt.util.parse_values import Range, parse_ranges, parse_relations, parse_sizes

F = TypeVar("F", bound=Callable[..., Any])

#: Parsers of text for a mapping, as on the command line.
_FROM_TEXT: dict[object, Callable[[list[str]], object]] = {
    Mapping[str, int]: parse_sizes,
    Mapping[str, Range]: parse_ranges,
    Mapping[str, str]: parse_relations,
}
_SCALARS: dict[object, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (numbers.Integral,),
    float: (numbers.Real,),
    str: (str,),
    types.NoneType: (types.NoneType,),
}


def checked(function: F) -> F:
    """Check the arguments of ``function``, whose signature lists the options of ``**options: Unpack[...]``.

    A single element is accepted for a sequence, and text such as ``"batch=1"`` for a mapping of dims to
    sizes. The function itself checks models and objects in sequences. Descriptions of the options are added
    to the documentation.

    The decorated function raises:
        TypeError: a keyword is unknown, or an argument is not of the type of its annotation.
        UsageError: text is not one of the values of a ``Literal``.
    """
    title = f"{function.__qualname__.removesuffix('.__init__').rpartition('.')[2]}()"
    signature = functools.cache(lambda: _Signature(function, title))

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(*signature().positional(args), **signature().by_keyword(keywords))

    if _option_group(function):
        known = signature()
        own = inspect.signature(function)
        call.__signature__ = own.replace(parameters=list(known.parameters.values()))  # type: ignore[attr-defined]
        call.__doc__ = known.documentation()
    return typing.cast(F, call)


class _Signature:
    """The parameters of ``function``, which has the name ``title`` in messages."""

    def __init__(self, function: Callable[..., Any], title: str) -> None:
        self.function, self.title = function, title
        self.parameters, self.group = _parameters(function)
        parameters = self.parameters
        self.is_open = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self.names = [one.name for one in parameters.values() if one.kind <= one.VAR_POSITIONAL]
        self.rest = next((one.name for one in parameters.values() if one.kind is one.VAR_POSITIONAL), "")
        self._kinds: dict[str, object] = {}

    def positional(self, values: Sequence[Any]) -> Iterator[Any]:
        """The positional arguments ``values``, converted."""
        names = itertools.chain(self.names, itertools.repeat(self.rest))
        return (self._converted(name, one) for name, one in zip(names, values, strict=False))

    def by_keyword(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments ``values`` by keyword, converted."""
        for name in () if self.is_open else values:
            if name not in self.parameters:
                text = self.function.__doc__ or ""
                current = [one for one in self.parameters if f" {one}: deprecated" not in text]
                listed = f"help({self.title[:-2]}) lists all"
                raise TypeError(unknown(f"argument of {self.title}", name, current, listed).message)
        return {name: self._converted(name, one) for name, one in values.items()}

    def documentation(self) -> str:
        """The documentation of the function, with descriptions of the options of its group."""
        assert self.group is not None
        group_name = next(reversed(inspect.signature(self.function).parameters), "")
        return _with_options(self.function.__doc__ or "", group_name, self.group)

    def _converted(self, name: str, value: Any) -> Any:
        if name not in self.parameters or value is (parameter := self.parameters[name]).default:
            return value
        annotation = parameter.annotation
        # graphopt.ir.as_model refuses other objects, with its own message
        if annotation is parameter.empty or "ModelLike" in annotation:
            return value
        if name not in self._kinds:
            group = self.group
            home = group if group is not None and name in group.__annotations__ else self.function
            self._kinds[name] = _evaluated(annotation, home)
        return _converted(self._kinds[name], value, f"{name} of {self.title}", annotation)


def _option_group(function: Callable[..., Any]) -> bool:
    """Whether ``function`` accepts the keywords of a ``TypedDict``."""
    return any(str(one).startswith("Unpack[") for one in function.__annotations__.values())


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], type | None]:
    """The parameters of ``function``, with those of ``**options: Unpack[Group]``; and ``Group``, if any."""
    own = dict(inspect.signature(function).parameters)
    last = next(reversed(own.values()), None)
    if last is None or last.kind is not last.VAR_KEYWORD or not str(last.annotation).startswith("Unpack["):
        return own, None
    del own[last.name]
    (group,) = typing.get_args(_evaluated(last.annotation, function))
    more = {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=opt.default if opt.setting is None else None,
            annotation=option_table.type_text(group, name),
        )
        for name, opt in option_table.declared(group).items()
    }
    return own | more, group


def _with_options(text: str, name: str, group: type) -> str:
    """The documentation ``text`` with the options of ``group`` below its line about ``name``."""

    def described(match: re.Match[str]) -> str:
        options = option_table.declared(group).items()
        lines = [_wrapped(f"{option}: {opt.help}", match[1]) for option, opt in options]
        return "\n".join([*match[0].splitlines(), *lines])

    entry = rf"^( *){name}: .*$(?:\n\1    .*$)*"
    return re.sub(entry, described, text, count=1, flags=re.MULTILINE)


@functools.cache
def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 110, initial_indent=indent, subsequent_indent=f"{indent}    ")


def _evaluated(annotation: str, home: Callable[..., Any]) -> object:
    """The type of ``annotation`` in the module of ``home``; any type if that requires missing source code."""
    module = sys.modules[inspect.unwrap(home).__module__]
    names = dict(vars(module))
    while True:
        try:
            return eval(annotation, names)
        except NameError as error:
            name = error.name or ""
            try:
                names[name] = _import_for_types(module, name)
            except OSError:
                return Any


def _import_for_types(module: types.ModuleType, name: str) -> object:
    """Import the object that ``module`` imports as ``name`` for type checkers only.

    Raises:
        NameError: the module has no such import.
        OSError: the source of ``module`` is not available.
    """
    imports = (
        (node.module or "", alias)
        for block in ast.parse(inspect.getsource(module)).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )
    for home, alias in imports:
        if name == (alias.asname or alias.name):
            return getattr(import_module(home), alias.name)
    raise NameError(f"{module.__name__} imports no {name}", name=name)


def _converted(kind: object, value: Any, name: str, annotation: str) -> Any:
    """``value`` as ``kind``, whose text is ``annotation``, or a TypeError about the argument ``name``."""
    if type(value) is kind:
        return value
    alternatives = _alternatives(kind)
    if isinstance(value, np.generic):
        value = value.item()
    for one in alternatives:
        if isinstance(value, str) and one in _FROM_TEXT:
            return _FROM_TEXT[one](value.split(","))
    several = [one for one in alternatives if _element(one) is not None]
    if isinstance(value, Iterator) and any(
        typing.get_origin(one) is Iterable and _is_plain(_element(one)) for one in several
    ):
        value = tuple(value)  # the function may iterate over it more than once
    if any(_accepts(one, value) for one in alternatives if one not in several):
        return value
    if any(_element(one) is not Any and _accepts(_element(one), value) for one in several):
        return (value,)
    if any(_accepts(one, value) for one in several):
        return value
    literals = [one for one in alternatives if typing.get_origin(one) is typing.Literal]
    choices = [text for one in literals for text in typing.get_args(one)]
    if choices and isinstance(value, str):
        raise unknown(f"value for {name}", value, choices, f"known are {', '.join(choices)}")
    forms = re.sub(r"\b(Iterable|Sequence)\[", "list[", annotation).replace("Mapping[", "dict[")
    forms = forms.replace("PathLike", "str | os.PathLike")
    is_short = isinstance(value, str | int | float | list | tuple | dict)
    shown = " ".join(reprlib.repr(value).split()) if is_short else type(value).__name__
    raise TypeError(f"{name} must be {forms.replace(' | ', ' or ')}, not {shown}")


@functools.cache
def _alternatives(kind: object) -> tuple[object, ...]:
    """The members of a union, or the type itself."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


@functools.cache
def _element(kind: object) -> object | None:
    """The type of the elements of a sequence type of any length; ``None`` for other types."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if not isinstance(origin, type) or not issubclass(origin, Iterable) or issubclass(origin, Mapping):
        return None
    if origin is tuple and args[1:] != (...,):
        return None
    return Any if isinstance(args[0], str) else args[0]  # a recursive type


def _accepts(kind: object, value: object) -> bool:
    """Whether ``value`` is of the type ``kind``; unknown kinds of types accept everything."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if len(alternatives := _alternatives(kind)) > 1:
        return any(_accepts(one, value) for one in alternatives)
    if kind is Any:
        return True
    if kind in _SCALARS:
        is_flag = isinstance(value, bool | np.bool_)
        return isinstance(value, _SCALARS[kind]) and (kind is bool or not is_flag)
    if origin is typing.Literal:
        return isinstance(value, str) and value in args
    if origin is Callable:
        return callable(value)
    if (element := _element(kind)) is not None:
        is_right = isinstance(value, Iterable if origin is Iterable else Collection)
        held = value if isinstance(value, Collection) and _is_plain(element) else ()
        return is_right and all(_accepts(element, one) for one in held)
    if origin is tuple:
        parts = tuple(value) if isinstance(value, list | tuple) else ()
        return len(parts) == len(args) and all(map(_accepts, args, parts))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(_accepts(args[0], key) and _accepts(args[1], one) for key, one in pairs)
    base = origin or kind
    return not isinstance(base, type) or isinstance(value, base)


@functools.cache
def _is_plain(kind: object) -> bool:
    """Whether ``kind`` is a scalar or a path, or a union or tuple of these."""
    args = typing.get_args(kind)
    return kind in _SCALARS or (bool(args) and all(_is_plain(one) for one in args))
