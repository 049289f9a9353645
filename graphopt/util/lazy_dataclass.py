"""The decorator ``dataclass``, whose classes compile their constructor on first use.

``dataclasses.dataclass`` compiles six methods of each frozen class. A run creates objects of few of
graphopt's hundreds of classes, and these compilations took a quarter of the time of a short run. Here,
``__init__`` is compiled when it is first accessed, and all other methods are closures. ``InitVar`` and fields
with names that begin with ``__graphopt_`` are refused. ``fields``, ``replace``, ``asdict`` and
``is_dataclass`` of the standard library apply to these classes too.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True):
        """Add the methods of a dataclass to a class; arguments are those of :func:`dataclasses.dataclass`."""

        def decorate(cls):
            return _with_methods(cls, frozen=frozen, eq=eq, repr=repr)

        return decorate if cls is None else decorate(cls)


class _FactoryDefault:
    """The default of an argument whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY_DEFAULT = _FactoryDefault()
#: Prefix of the internal names in compiled constructors, which no field may have.
_PREFIX = "__graphopt_"


class _LazyConstructor:
    """The attribute ``__init__`` of a class, replaced by a function when it is first accessed."""

    def __init__(self, owner: type, frozen: bool) -> None:
        self.owner, self.frozen = owner, frozen

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        function = _constructor(self.owner, self.frozen)
        self.owner.__init__ = function  # type: ignore[misc]
        return function.__get__(instance, kind)


def _with_methods(cls: Any, *, frozen: bool, eq: bool, repr: bool) -> Any:
    own = vars(cls)
    inherits = any(map(dataclasses.is_dataclass, cls.__bases__))
    if cls.__doc__ is None:  # otherwise, the standard library compiles the constructor for its signature
        cls.__doc__ = cls.__name__
    has_init, has_repr, has_eq = ("__init__" in own), ("__repr__" in own), ("__eq__" in own)
    # an explicit __eq__ without __hash__ sets __hash__ to None
    has_hash = own.get("__hash__") is not None or ("__hash__" in own and not has_eq)
    # the standard library compares only with base classes whether a class is frozen
    collect = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen and inherits)
    collect(cls)
    params = cls.__dataclass_params__
    params.init, params.repr, params.eq, params.frozen = True, repr, eq, frozen
    fields = dataclasses.fields(cls)
    _check(cls)
    if not has_init:
        cls.__init__ = _LazyConstructor(cls, frozen)
    if repr and not has_repr:
        cls.__repr__ = _repr([field.name for field in fields if field.repr])
    if eq:
        if not has_eq:
            cls.__eq__ = _eq(cls, _values_of([field.name for field in fields if field.compare]))
        if not has_hash:
            hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
            cls.__hash__ = _hash(cls, _values_of(hashed)) if frozen else None
    if frozen and not inherits:
        cls.__setattr__, cls.__delattr__ = _refusals(cls, frozenset(field.name for field in fields))
    return cls


def _check(cls: type[Any]) -> None:
    """Raise TypeError, when the class is created, for fields without a valid constructor."""
    optional = ""
    for field in vars(cls)["__dataclass_fields__"].values():
        kind = getattr(field._field_type, "name", "")
        if kind == "_FIELD_INITVAR":
            raise TypeError(f"field {field.name!r} of {cls.__name__}: InitVar is not supported")
        if field.name.startswith(_PREFIX):
            raise TypeError(f"field {field.name!r} of {cls.__name__}: the prefix {_PREFIX} is reserved")
        if kind != "_FIELD" or not field.init or field.kw_only:
            continue
        if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
            optional = field.name
        elif optional:
            raise TypeError(f"non-default argument {field.name!r} follows default argument {optional!r}")


def _values_of(names: list[str]) -> Callable[[Any], tuple[object, ...]]:
    """A function that returns the values of the attributes ``names`` of an object."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda item: ()
    get = attrgetter(*names)
    return lambda item: (get(item),)


def _repr(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _eq(cls: type, values: Callable[[Any], tuple[object, ...]]) -> Callable[[Any, object], Any]:
    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return _named(__eq__, cls)


def _hash(cls: type, values: Callable[[Any], tuple[object, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return _named(__hash__, cls)


def _refusals(cls: Any, names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    """The methods ``__setattr__`` and ``__delattr__`` of a frozen class with the fields ``names``."""

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return _named(__setattr__, cls), _named(__delattr__, cls)


def _constructor(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """Compile ``__init__`` of a dataclass with keyword and positional arguments for its fields."""
    fields = dataclasses.fields(cls)
    missing, set_ = f"{_PREFIX}missing", f"{_PREFIX}set"
    names: dict[str, object] = {missing: _FACTORY_DEFAULT, set_: object.__setattr__}
    # as in the standard library, a field may be called self
    this = f"{_PREFIX}self" if any(field.name == "self" for field in fields) else "self"
    positional, keyword, body = [this], list[str](), list[str]()
    for field in fields:
        value = argument = field.name
        if field.default is not dataclasses.MISSING:
            default = f"{_PREFIX}default_{field.name}"
            names[default] = field.default
            argument += f"={default}"
        elif field.default_factory is not dataclasses.MISSING:
            factory = f"{_PREFIX}factory_{field.name}"
            names[factory] = field.default_factory
            argument += f"={missing}"
            value = f"{factory}()"
            if field.init:
                value += f" if {field.name} is {missing} else {field.name}"
        elif not field.init:
            continue
        if field.init:
            (keyword if field.kw_only else positional).append(argument)
        elif field.default is not dataclasses.MISSING:
            continue  # the attribute of the class
        body.append(
            f"{set_}({this}, {field.name!r}, {value})" if frozen else f"{this}.{field.name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        body.append(f"{this}.__post_init__()")
    arguments = ", ".join([*positional, *(["*", *keyword] if keyword else [])])
    lines = "".join(f"\n  {line}" for line in body or ["pass"])
    text = f"def create({', '.join(names)}):\n def __init__({arguments}):{lines}\n return __init__"
    created: dict[str, Any] = {}
    # as in the standard library, the globals are those of the module, in which annotations are evaluated
    exec(text, vars(sys.modules[cls.__module__]), created)
    function = created["create"](**names)
    function.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return _named(function, cls)


def _named(function: Callable[..., Any], cls: type) -> Callable[..., Any]:
    function.__qualname__ = f"{cls.__qualname__}.{function.__name__}"
    return function
