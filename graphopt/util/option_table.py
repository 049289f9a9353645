"""Tables of options: classes of keywords whose annotations describe each option once."""

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from graphopt.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Opt:
    """One option.

    Attributes:
        help: one or more sentences.
        section: the heading of its group in the help of the command line; empty if it is no option there, or
            made of several.
        flag: its name there, ``--on/--off`` for a switch that is on by default; derived if empty.
        metavar: the notation of its value there, which determines how it is parsed; a switch has none.
        default: its value if it is not given; that of a switch is ``False``.
        setting: the type of its value in settings; ``None`` if it is no setting. A setting that is not given
            has the value of the settings in force.
        excludes: options that can't be given as well.
        needs: options that have to be in force.
        hint: the next step where ``excludes`` or ``needs`` are violated.
    """

    help: str
    section: str = ""
    flag: str = ""
    metavar: str = ""
    default: Any = None
    setting: Any = None
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    hint: str | None = None


@cache
def declared(group: type) -> dict[str, Opt]:
    """The options of ``group``, a TypedDict, by name."""
    return {name: _completed(name, hint.__metadata__[0]) for name, hint in group.__annotations__.items()}


def _completed(name: str, opt: Opt) -> Opt:
    """``opt`` with the flag and the default that follow from its other fields."""
    if not opt.section:
        return opt
    default = False if opt.default is None and not opt.metavar else opt.default
    flag = f"--{name.replace('_', '-')}"
    flag = opt.flag or (f"{flag}/{flag.replace('--', '--no-')}" if default is True else flag)
    return dataclasses.replace(opt, flag=flag, default=default)


def type_text(group: type, name: str) -> str:
    """The type of the option ``name`` of ``group``, as Python source."""
    text: str = typing.get_args(group.__annotations__[name])[0].__forward_arg__
    return text


def with_keywords(text: str, options: Mapping[str, Opt]) -> str:
    """``text`` with the flags of ``options`` spelled as keywords: ``--no-verify`` is ``verify=False``."""
    keywords = {}
    for name, opt in options.items():
        on, _, off = opt.flag.partition("/")
        keywords[on] = f"{name}=True" if isinstance(opt.default, bool) else name
        keywords[off] = f"{name}=False"
    return re.sub(r"--[a-z][a-z-]*[a-z]", lambda flag: keywords.get(flag[0], flag[0]), text)


def picked(kind: Callable[..., T], options: Mapping[str, Any], /, **more: Any) -> T:
    """An object of the dataclass ``kind`` with the ``options`` that are fields of it, and with ``more``."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in options.items() if name in names} | more)


# Options and each other ---------------------------------------------------------------------


class Related(Protocol):
    """An option with relations to others."""

    @property
    def excludes(self) -> Collection[str]: ...
    @property
    def needs(self) -> Collection[str]: ...
    @property
    def hint(self) -> str | None: ...


def check(
    options: Mapping[str, Related],
    given: Collection[str],
    on: Collection[str] = (),
    label: Callable[[str], str] = str,
) -> None:
    """Check that options go together.

    Args:
        options: all options that there are, by name.
        given: names of those that were given; each needs others.
        on: names of those that are in force otherwise, such as by settings.
        label: the name of an option in messages.

    Raises:
        UsageError: one excludes another, or lacks another that it needs.
    """
    in_force = {*given, *on}
    for name, option in options.items():
        if name not in in_force:
            continue
        for other in option.needs if name in given else ():
            if other not in in_force:
                hint = option.hint or f"add {label(other)}, or leave {label(name)} out"
                raise UsageError(f"{label(name)} goes with {label(other)}", hint=hint)
        for other in option.excludes:
            if other in in_force:
                hint = option.hint or "leave one of them out"
                raise UsageError(f"{label(other)} and {label(name)} exclude each other", hint=hint)
