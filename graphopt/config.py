"""The sources of settings, and the current settings.

Later sources override earlier ones: the defaults (:mod:`graphopt.settings`); ``graphopt.toml``, or
``[tool.graphopt]`` in ``pyproject.toml``, in the current folder or the nearest parent folder that has it;
environment variables ``GRAPHOPT_*``; the command line. Only this module reads the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphopt.errors import UsageError
from graphopt.settings import Settings, as_toml, describe, parse_setting, shown, typed_setting

__all__ = [
    "Origins",
    "Settings",
    "as_toml",
    "color_setting",
    "current",
    "defaults",
    "describe",
    "environment",
    "environment_of_caller",
    "in_file",
    "load",
    "origins",
    "patch",
    "prepare_libraries",
    "shown",
    "sources",
    "using",
    "variable",
]

_PREFIX = "GRAPHOPT_"
#: The file in which settings are in the table ``[tool.graphopt]``; in other files, they are at the top level.
_PYPROJECT = "pyproject.toml"
#: The source and the value of settings by name.
Origins = dict[str, tuple[str, Any]]


def load(
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
    *,
    file: bool | Path | Origins = True,
) -> Settings:
    """Read the settings from the nearest file, the environment, and the arguments.

    Args:
        environ: environment variables; by default those of the process.
        folder: where the search for a settings file starts; by default the current folder.
        overrides: values of command-line options; ``None`` if not given.
        assignments: ``key=value`` texts (``--set``); ``overrides`` have precedence.
        file: whether to read a settings file; or the file; or values in its place, with their sources.

    Raises:
        UsageError: a key is unknown (the message suggests the nearest), or a value does not fit its key; or
            the file does not exist, or is not TOML.
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
    file: bool | Path | Origins = True,
) -> Origins:
    """The source and the value of each setting that a source sets; arguments as for :func:`load`.

    The source is text for messages: ``exact in /home/me/graphopt.toml:3``, ``GRAPHOPT_EXACT``, or
    ``--set exact``.
    """
    environ = _variables(environ)
    if isinstance(file, dict):
        found = dict(file)
    elif isinstance(file, Path):
        found = in_file(file)
    else:
        path, _ = _file_in_force(Path.cwd() if folder is None else Path(folder)) if file else (None, {})
        found = {} if path is None else in_file(path)
    for variable, text in environ.items():
        if variable.startswith(_PREFIX):
            name, value = parse_setting(variable.removeprefix(_PREFIX).lower(), text, variable)
            found[name] = (variable, value)
    for assignment in assignments:
        name, value = _from_assignment(assignment)
        found[name] = (f"--set {assignment.partition('=')[0].strip()}", value)
    return found


def in_file(path: Path) -> Origins:
    """The source and the value of each setting in the settings file ``path``.

    Raises:
        UsageError: the file does not exist, or is not TOML; a key is unknown, or a value does not fit it.
    """
    table, found = _table(path), {}
    for key, item in (table or {}).items():
        name, value = _from_toml(key, item, path)
        found[name] = (f"{key} in {path}{_line_of(key, path)}", value)
    return found


def defaults() -> Settings:
    """The settings if no source sets any."""
    return Settings(cache_dir=Settings().cache_dir.expanduser())


_patched: ContextVar[Settings | None] = ContextVar("graphopt settings", default=None)


def current() -> Settings:
    """The settings of the innermost :func:`using` or :func:`patch`, or those of the environment variables.

    Only the command line reads settings files automatically; ``using(load())`` applies them to library calls.
    """
    return _patched.get() or load(file=False)


@contextlib.contextmanager
def using(settings: Settings) -> Iterator[Settings]:
    """Use ``settings`` as the current settings during the ``with`` block, in this thread or task.

    Raises:
        TypeError: ``settings`` is not a result of :func:`load`.
    """
    if not isinstance(settings, Settings):
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
    values = dict(typed_setting(key, value, "config.patch") for key, value in changes.items())
    return using(replace(current(), **values))


def sources(
    environ: Mapping[str, str] | None = None, folder: str | os.PathLike[str] | None = None
) -> tuple[str, ...]:
    """The settings file and the environment variables that apply; arguments as for :func:`load`."""
    environ = _variables(environ)
    file, _ = _file_in_force(Path.cwd() if folder is None else Path(folder))
    variables = sorted(name for name in environ if name.startswith(_PREFIX))
    return (*([] if file is None else [str(file)]), *variables)


#: Without these variables, onnxruntime's official builds send usage data to Microsoft (Privacy.md in the
#: wheel).
_NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """An environment variable that is not specific to graphopt, such as ``CC``; ``None`` if it is empty."""
    return (os.environ if environ is None else environ).get(name) or None


def color_setting(environ: Mapping[str, str] | None = None) -> bool | None:
    """Whether the environment forces colours on or off, for example by ``FORCE_COLOR`` or ``NO_COLOR``."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return False if environ.get("CLICOLOR") == "0" or environ.get("TERM") == "dumb" else None


def environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: that of this process with ``changes``, without telemetry."""
    return {**_NO_TELEMETRY, **os.environ, **changes}


#: The number of threads of OpenBLAS, which numpy starts when it is imported.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
#: The variables that graphopt added to the environment of this process; commands of callers run without them.
_added: ContextVar[tuple[str, ...]] = ContextVar("added environment variables", default=())


def prepare_libraries() -> None:
    """Set the variables of libraries for the command line, before they are imported, unless already set.

    onnxruntime sends no usage data. numpy's OpenBLAS runs on one thread: graphopt multiplies small matrices,
    and the threads would cost CPU time and memory for each core, even if they are idle. Without memory for
    them, OpenBLAS interrupts the process (SIGINT).
    """
    for name, value in _NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    if _BLAS_THREADS not in os.environ:
        os.environ[_BLAS_THREADS] = "1"
        _added.set((_BLAS_THREADS,))


def environment_of_caller() -> dict[str, str]:
    """The environment for commands of the caller, without the variables that graphopt added."""
    return {name: value for name, value in os.environ.items() if name not in _added.get()}


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
    """Defaults from environment variables that are not specific to graphopt."""
    values: dict[str, Any] = {"cache_dir": Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "graphopt"}
    color = color_setting(environ)
    return values if color is None else {**values, "color": color}


def _file_in_force(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The settings file that applies in ``folder``, and its contents."""
    for parent in (folder, *folder.absolute().parents):
        for name in ("graphopt.toml", _PYPROJECT):
            file = parent / name
            table = _table(file) if file.is_file() else None
            if table is not None:
                return file, table
    return None, {}


def _table(file: Path) -> dict[str, Any] | None:
    """The settings in ``file``; ``None`` if it contains none for graphopt."""
    import tomllib

    ours = file.name != _PYPROJECT
    try:
        text = file.read_text(encoding="utf-8")
        if not ours and "[tool.graphopt" not in text:
            return None
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"can't read the settings in {file}: {error}") from error
    return content if ours else content.get("tool", {}).get("graphopt")


def _line_of(key: str, file: Path) -> str:
    """The line of ``key`` in a settings file as ``:3``; empty if the key is written in an unusual form."""
    is_inside = file.name != _PYPROJECT
    assignment = re.compile(rf"""\s*(?:tool\.graphopt\.)?["']?{re.escape(key)}["']?\s*=""")
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("["):
            is_inside = line.partition("#")[0].strip() == "[tool.graphopt]"
        elif (is_inside or "tool.graphopt" in line) and assignment.match(line):
            return f":{number}"
    return ""


def _from_toml(key: str, item: Any, file: Path) -> tuple[str, Any]:
    """Parse one key of a settings file; paths are relative to the file."""
    if isinstance(item, dict):
        above = "directly under [tool.graphopt]" if file.name == _PYPROJECT else "at the top level"
        raise UsageError(
            f"{file}: {key!r} is a table, which no setting is",
            hint=f"write settings {above}, such as exact = true",
        )
    name, value = typed_setting(key, item, str(file))
    return name, _relative_to(file.parent, value)


def _relative_to(folder: Path, value: Any) -> Any:
    if isinstance(value, Path):
        return folder / value
    return tuple(_relative_to(folder, part) for part in value) if isinstance(value, tuple) else value


def _from_assignment(assignment: str) -> tuple[str, Any]:
    key, separator, text = assignment.partition("=")
    if not separator:
        raise UsageError(f"--set {assignment!r} is not of the form key=value")
    return parse_setting(key.strip(), text.strip(), "--set")
