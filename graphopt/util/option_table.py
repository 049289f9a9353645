"""Tables of options: classes of keywords whose annotations describe each option once."""

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass

T = TypeVar("T")
#: The role of an option or setting in the result cache: ``key``: a part of the key; ``ignored``: it does not
#: influence results; ``bypass``: results are neither stored nor reused while it is set.
CacheRole = Literal["key", "ignored", "bypass"]
#: The form of an option or setting in the records of artifacts (:mod:`graphopt.recorded_settings`):
#: ``value``: its value; ``contents``: its value, with digests instead of files; ``omitted``: it can't
#: change results; ``private``: it is omitted, and it may contain credentials or folders of the user, so that
#: graphopt writes it to no file.
RecordRole = Literal["value", "contents", "omitted", "private"]


@dataclass(frozen=True)
class Opt:
    """One option.

    Attributes:
        help: one or more sentences.
        section: the heading of its group in the help of the command line; empty if the command line lacks the
            option, or combines it from several options.
        flag: its name on the command line, ``--on/--off`` for a switch that is on by default; derived if
            empty.
        metavar: the notation of its value on the command line, which determines the parser; a switch has
            none.
        default: the value of an omitted option; ``False`` for a switch.
        setting: the type of its value in settings; ``None`` if it is not a setting. An omitted option that is
            a setting has the value of the current settings.
        excludes: options that can't be combined with this one.
        needs: options that must be set.
        hint: the next step if ``excludes`` or ``needs`` is violated.
        cache: its role in the result cache.
        record: its form in the records of artifacts. A recorded one is not ``ignored`` in the result cache,
            because a stored result has the record of the run that computed it.
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
    cache: CacheRole = "key"
    record: RecordRole = "value"


@cache
def declared(group: type) -> dict[str, Opt]:
    """The options of ``group``, a TypedDict, by name."""
    return {
        name: _complete_option(name, hint.__metadata__[0]) for name, hint in group.__annotations__.items()
    }


def _complete_option(name: str, opt: Opt) -> Opt:
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


#: Flags without an option in a table, and their equivalents in Python.
_IN_PYTHON = {
    "--allow-command": "allow_command=True",
    "--allow-external": "allow_external",
    "--budget": "budget",
    "--check": "kind",
    "--emit bundle": "bundle=True",
    "--fuser": "fuser",
    "--input": "inputs",
    "--input-shape": "inputs",
    "--no-zip": "archive=False",
    "--passes": "pipeline",
    "--pipeline": "pipeline",
    "--tune": "tune",
    "--variants": "most",
    "--weights": "weights",
    "--wrt": "wrt",
    "--zip": "archive=True",
}
#: A whole command, which is unchanged; ``--set KEY=VALUE``; shapes and files of inputs; ``-O3``; the
#: place of weights; any other flag.
_FLAG = re.compile(
    r"graphopt [a-z]+(?: [A-Z][\w.]*| --?[\w-]+(?: [\w.]+)?)+"
    r"|--set (?P<key>[a-z-]+)=(?P<value>\w+)"
    r"|--input(?P<shape>-shape)? (?P<input>[A-Z]+[:.]\S*\w)"
    r"|(?P<both>--input(?:-shape)?(?:, | and )--input(?:-shape)?)(?! [A-Z])"
    r"|-O(?P<level>[0-3])\b"
    r"|--weights (?P<place>\w+)"
    r"|--emit bundle|--[a-z][a-z-]*[a-z]"
)


def with_keywords(text: str, options: Mapping[str, Opt]) -> str:
    """``text`` with flags of the command line spelled as Python: ``--no-verify`` is ``verify=False``.

    Args:
        text: a hint.
        options: the options whose flags are known, by keyword.
    """
    keywords = dict(_IN_PYTHON)
    for name, opt in options.items():
        on, _, off = opt.flag.partition("/")
        keywords[on] = f"{name}=True" if isinstance(opt.default, bool) else name
        keywords[off] = f"{name}=False"

    def spelled(flag: re.Match[str]) -> str:
        if key := flag["key"]:
            is_literal = flag["value"].isupper() or flag["value"].isdecimal()
            value = flag["value"] if is_literal else repr(flag["value"])
            return f"config.patch({key.replace('-', '_')}={value})"
        if flag["input"]:
            argument = "" if flag["shape"] else "files="
            return f"inputs=InputOptions.parse({argument}['{flag['input']}'])"
        if flag["place"]:
            return f"weights={flag['place']!r}"
        if flag["both"]:
            return "inputs"
        return f"pipeline='O{flag['level']}'" if flag["level"] else keywords.get(flag[0], flag[0])

    return _FLAG.sub(spelled, text)


def pick_options(kind: Callable[..., T], options: Mapping[str, Any], /, **more: Any) -> T:
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
    """Check that options can be combined.

    Args:
        options: all existing options, by name.
        given: names of the given options, whose requirements are checked.
        on: names of options that are set for other reasons, such as settings.
        label: the name of an option in messages.

    Raises:
        UsageError: an option excludes another, or lacks one that it requires.
    """
    in_force = {*given, *on}
    for name, option in options.items():
        if name not in in_force:
            continue
        for other in option.needs if name in given else ():
            if other not in in_force:
                hint = option.hint or f"add {label(other)}, or leave {label(name)} out"
                raise UsageError(f"{label(name)} requires {label(other)}", hint=hint)
        for other in option.excludes:
            if other in in_force:
                hint = (None if option.needs else option.hint) or "leave one of them out"
                raise UsageError(f"{label(other)} and {label(name)} exclude each other", hint=hint)
