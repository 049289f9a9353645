"""Typed settings and their sources.

Later sources override earlier ones: the defaults below; ``graphopt.toml``, or ``[tool.graphopt]`` in
``pyproject.toml``, in the nearest folder from the current one upward; environment variables ``GRAPHOPT_*``;
the command line. Only this module reads the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from graphopt.errors import UsageError, unknown
from graphopt.options import OPTIONS, OptimizeOptions
from graphopt.util.option_table import check
from graphopt.util.parse_values import Seconds, from_text

_PREFIX = "GRAPHOPT_"


@dataclass(frozen=True)
class _Settings:
    """Settings that are not options of ``optimize``."""

    verify_seconds: Annotated[
        Seconds,
        "CPU time of verification, in seconds or with a unit; after half of this time, only one size of each"
        " kind of values is compared",
    ] = Seconds(10.0)
    costs: Annotated[
        str, "cost table of fused operators: auto (calibrated here, else shipped), shipped, or a .json file"
    ] = "auto"
    compiler: Annotated[
        str, "C compiler of native kernels, with optional arguments: auto for $CC, gcc, clang or ziglang"
    ] = "auto"
    cpu_level: Annotated[
        int | None, "x86-64 level of native kernels: 2, 3 or 4; by default the level of the CPU"
    ] = None
    seed: Annotated[int, "seed of generated inputs"] = 0
    external_data: Annotated[bool | None, "weights in a separate file; by default as in the original"] = None
    allow_external: Annotated[tuple[Path, ...], "additional folders of external data"] = ()
    log: Annotated[str, "passes or rule files, each optionally prefixed by '>' or '>>', joined by ':'"] = ""
    cache_dir: Annotated[Path, "folder of the store"] = Path("~/.cache/graphopt")
    color: Annotated[bool | None, "colours; by default only if the output is a terminal"] = None
    debug: Annotated[bool, "show the traceback of errors"] = False

    def __post_init__(self) -> None:
        if self.cpu_level not in (None, 2, 3, 4):
            raise UsageError(f"cpu-level can't be {self.cpu_level}: give 2, 3 or 4")
        for key in ("seed", "fold_limit", "time_limit", "memory_limit", "verify_seconds"):
            if not getattr(self, key) >= 0:
                raise UsageError(f"{key.replace('_', '-')} can't be {getattr(self, key)}: give 0 or more")

    def settle(self, options: OptimizeOptions) -> OptimizeOptions:
        """All options: ``options``, with the values of these settings and defaults for the others."""
        values = {
            name: opt.default if opt.setting is None else getattr(self, name) for name, opt in OPTIONS.items()
        }
        values |= {name: value for name, value in options.items() if value is not None}
        return cast(OptimizeOptions, values)

    def having(self, options: OptimizeOptions) -> Settings:
        """These settings, overridden by those of ``options`` that are settings.

        Raises:
            UsageError: a value is out of its range, or options exclude or require each other.
        """
        given = {name: value for name, value in options.items() if value is not None}
        changes: dict[str, Any] = {
            name: tuple(cast(Iterable[str], value)) if kind == tuple[str, ...] else value
            for name, kind in _OF_OPTIONS.items()
            if (value := given.get(name)) is not None and (kind is not str or isinstance(value, str))
        }
        settings = replace(self, **changes)
        settings.check({name for name, value in given.items() if value is not False})
        return cast(Settings, settings)

    def check(self, given: Collection[str], label: Callable[[str], str] = str) -> None:
        """Check that the ``given`` options and the switches that settings enable can be combined.

        Raises:
            UsageError: two options exclude each other, or one requires another.
        """
        on = {name for name, kind in _OF_OPTIONS.items() if kind is bool and getattr(self, name)}
        check(OPTIONS, given, on, label)


#: The options of ``optimize`` that are also settings, with the types of their values.
_OF_OPTIONS = {name: opt.setting for name, opt in OPTIONS.items() if opt.setting is not None}

if TYPE_CHECKING:

    class Settings(_Settings):
        """All settings; :class:`graphopt.options.OptimizeOptions` declares those that are options."""

        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, option: str) -> Any: ...

else:
    Settings = make_dataclass(
        "Settings",
        [
            (name, Annotated[kind, OPTIONS[name].help], OPTIONS[name].default)
            for name, kind in _OF_OPTIONS.items()
        ],
        bases=(_Settings,),
        frozen=True,
        namespace={
            "__module__": __name__,
            "__doc__": "Every setting. In the environment, a key is written as ``GRAPHOPT_FOLD_LIMIT``.",
        },
    )


def load(
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
    *,
    file: bool = True,
) -> Settings:
    """Read the settings from the nearest file, the environment, and the arguments.

    Args:
        environ: environment variables; by default those of the process.
        folder: where the search for a settings file starts; by default the current folder.
        overrides: values of command-line options; ``None`` if not given.
        assignments: ``key=value`` texts (``--set``); ``overrides`` have precedence.
        file: whether to read a settings file.

    Raises:
        UsageError: a key is unknown (the message suggests the nearest), or a value does not fit its key.
    """
    environ = _variables(environ)
    values = _conventions(environ)
    values |= {name: value for name, (_, value) in origins(environ, folder, assignments, file=file).items()}
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    values["cache_dir"] = values["cache_dir"].expanduser()
    return Settings(**values)


def origins(
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    assignments: Iterable[str] = (),
    *,
    file: bool = True,
) -> dict[str, tuple[str, Any]]:
    """The source and the value of each setting with a source; arguments as for :func:`load`.

    The source is text for messages: ``exact in /home/me/graphopt.toml``, ``GRAPHOPT_EXACT``, ``--set exact``.
    """
    environ = _variables(environ)
    path, table = _file_in_force(Path.cwd() if folder is None else Path(folder)) if file else (None, {})
    found = {}
    for key, item in table.items():
        assert path is not None
        name, value = _from_toml(key, item, path)
        found[name] = (f"{key} in {path}", value)
    for variable, text in environ.items():
        if variable.startswith(_PREFIX):
            name, value = _from_text(variable.removeprefix(_PREFIX).lower(), text, variable)
            found[name] = (variable, value)
    for assignment in assignments:
        name, value = _from_assignment(assignment)
        found[name] = (f"--set {assignment.partition('=')[0].strip()}", value)
    return found


def defaults() -> Settings:
    """The settings without any source."""
    return Settings(cache_dir=Settings().cache_dir.expanduser())


_patched: ContextVar[Settings | None] = ContextVar("graphopt settings", default=None)


def current() -> Settings:
    """The settings of the innermost :func:`using` or :func:`patch`, else those of the environment variables.

    Only the command line reads settings files automatically; ``using(load())`` applies them to library calls.
    """
    return _patched.get() or load(file=False)


@contextlib.contextmanager
def using(settings: Settings) -> Iterator[Settings]:
    """Use ``settings`` as the current settings during the ``with`` block, in this thread or task.

    Raises:
        TypeError: ``settings`` is not a result of :func:`load`.
    """
    if not isinstance(settings, _Settings):
        raise TypeError(f"settings must be Settings, as load() returns them, not {type(settings).__name__}")
    token = _patched.set(settings)
    try:
        yield settings
    finally:
        _patched.reset(token)


def patch(**changes: Any) -> contextlib.AbstractContextManager[Settings]:
    """Change some of the current settings during the ``with`` block.

    >>> with patch(fold_limit=0) as settings:
    ...     settings.fold_limit, current().fold_limit
    (0, 0)

    Raises:
        UsageError: a key is unknown, or a value does not fit its key.
    """
    values = dict(_typed(key, value, "config.patch") for key, value in changes.items())
    return using(replace(current(), **values))


def sources(
    environ: Mapping[str, str] | None = None, folder: str | os.PathLike[str] | None = None
) -> tuple[str, ...]:
    """The settings file and the environment variables in force; arguments as for :func:`load`."""
    environ = _variables(environ)
    file, _ = _file_in_force(Path.cwd() if folder is None else Path(folder))
    variables = sorted(name for name in environ if name.startswith(_PREFIX))
    return (*([] if file is None else [str(file)]), *variables)


#: Without it, onnxruntime's official builds send usage data to Microsoft (Privacy.md in the wheel).
_NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """An environment variable of general use, such as ``CC``; ``None`` if it is empty."""
    return (os.environ if environ is None else environ).get(name) or None


def color_setting(environ: Mapping[str, str] | None = None) -> bool | None:
    """Whether the environment forces colours on or off, such as by ``NO_COLOR`` or ``FORCE_COLOR``."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return False if environ.get("CLICOLOR") == "0" or environ.get("TERM") == "dumb" else None


def environment(**changes: str) -> dict[str, str]:
    """The environment variables of this process for a child, without telemetry and with ``changes``."""
    return {**_NO_TELEMETRY, **os.environ, **changes}


def disable_telemetry() -> None:
    """Keep the onnxruntime of this process from sending usage data, unless a variable is set for this."""
    for name, value in _NO_TELEMETRY.items():
        os.environ.setdefault(name, value)


def describe() -> list[tuple[str, Any, str]]:
    """Key, default and description of each setting, for documentation."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    return [
        (item.name.replace("_", "-"), item.default, hints[item.name].__metadata__[0])
        for item in fields(Settings)
    ]


def as_toml(settings: Settings) -> str:
    """``settings`` as a ``graphopt.toml`` that :func:`load` reads back."""

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"[{', '.join(map(text, value))}]"
        plain = str(value.absolute()) if isinstance(value, Path) else value
        return json.dumps(plain, ensure_ascii=False)

    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return "".join(f"{key} = {text(value)}\n" for key, value in values.items() if value is not None)


def shown(value: Any) -> str:
    """A value as users write it."""
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _variables(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """``environ``, or the environment variables of the process.

    Raises:
        TypeError: ``environ`` is a path.
    """
    if isinstance(environ, str | os.PathLike):
        raise TypeError(
            f"environ, the first argument, is a mapping: for a path, write folder={str(environ)!r}"
        )
    return os.environ if environ is None else environ


def _conventions(environ: Mapping[str, str]) -> dict[str, Any]:
    """Defaults from environment variables of general use."""
    values: dict[str, Any] = {"cache_dir": Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "graphopt"}
    color = color_setting(environ)
    return values if color is None else {**values, "color": color}


def _file_in_force(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The settings file in force in ``folder``, and its contents."""
    for parent in (folder, *folder.absolute().parents):
        for name in ("graphopt.toml", "pyproject.toml"):
            file = parent / name
            table = _table(file) if file.is_file() else None
            if table is not None:
                return file, table
    return None, {}


def _table(file: Path) -> dict[str, Any] | None:
    """The settings in ``file``; ``None`` without settings for graphopt."""
    import tomllib

    ours = file.name == "graphopt.toml"
    try:
        text = file.read_text(encoding="utf-8")
        if not ours and "[tool.graphopt" not in text:
            return None
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"can't read the settings in {file}: {error}") from error
    return content if ours else content.get("tool", {}).get("graphopt")


def _from_toml(key: str, item: Any, file: Path) -> tuple[str, Any]:
    """Parse one key of a settings file; paths are relative to the file."""
    if isinstance(item, dict):
        above = "at the top level" if file.name == "graphopt.toml" else "directly under [tool.graphopt]"
        raise UsageError(
            f"{file}: {key!r} is a table, which no setting is",
            hint=f"write settings {above}, such as exact = true",
        )
    name, value = _typed(key, item, str(file))
    return name, _relative_to(file.parent, value)


def _typed(key: str, item: Any, where: str) -> tuple[str, Any]:
    """Check the key and the value of a setting from the source ``where``; text is parsed."""
    name = _check_key(key, where)
    kind = _kinds()[name]
    kinds = (int, float) if kind is Seconds else typing.get_args(kind) or (kind,)
    if isinstance(item, str):
        return _from_text(name, item, where)
    if isinstance(item, list | tuple) and typing.get_origin(kind) is tuple:
        value: Any = tuple(from_text(str(part), kinds[0]) for part in item)
    elif type(item) in kinds or (isinstance(item, Path) and kind is Path):
        value = item
    else:
        written = json.dumps(item, ensure_ascii=False, default=str)
        raise UsageError(f"{where}: {written} is not a value for {key!r}; {_form(kind)}")
    _check_range(name, value, where)
    return name, value


def _form(kind: Any) -> str:
    """The advice for a value of a settings file that is not of type ``kind``."""
    if typing.get_origin(kind) is tuple:
        return 'write a list, such as ["cse", "dce"]'
    try:
        from_text("?", kind)
    except ValueError as error:
        unit = "" if bool in (kind, *typing.get_args(kind)) else ", in quotes if it has a unit"
        return f"{error}{unit}"
    return "write text in quotes"


def _check_range(name: str, value: Any, where: str) -> None:
    """Check the range of a value from the source ``where``."""
    try:
        Settings(**{name: value})
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from None


def _relative_to(folder: Path, value: Any) -> Any:
    if isinstance(value, Path):
        return folder / value
    return tuple(_relative_to(folder, part) for part in value) if isinstance(value, tuple) else value


def _from_assignment(assignment: str) -> tuple[str, Any]:
    key, separator, text = assignment.partition("=")
    if not separator:
        raise UsageError(f"--set {assignment!r} is not of the form key=value")
    return _from_text(key.strip(), text.strip(), "--set")


def _from_text(key: str, text: str, where: str) -> tuple[str, Any]:
    name = _check_key(key, where)
    try:
        value = from_text(text, _kinds()[name])
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is not a value for {key!r}; {error}") from error
    _check_range(name, value, where)
    return name, value


def _check_key(key: str, where: str) -> str:
    name = key.replace("-", "_")
    known = [item.name for item in fields(Settings)]
    if name not in known:
        error = unknown("setting", key, [item.replace("_", "-") for item in known], "docs/cli.md lists all")
        raise UsageError(f"{where}: {error.message}")
    return name


def _kinds() -> dict[str, Any]:
    return typing.get_type_hints(Settings)
