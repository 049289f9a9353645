"""The settings of graphopt: their types, defaults, ranges and notation."""

from __future__ import annotations

import contextlib
import json
import typing
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from graphopt.errors import UsageError, unknown
from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.util.cuda_options import as_texts, parse_cuda_options
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.option_table import Opt, check
from graphopt.util.parse_values import Seconds, from_text
from graphopt.util.weight_placement import PLACES, WeightPlacement


@dataclass(frozen=True)
class _Settings:
    """Settings that are not options of ``optimize``."""

    verify_seconds: Annotated[
        Seconds,
        Opt(
            "CPU time of verification, in seconds or with a unit; after half of this time, only one size of"
            " each kind of values is compared. optimize limits its comparisons to a fortieth of this time,"
            " estimated from shapes, so that their number does not depend on the load of the machine"
        ),
    ] = Seconds(10.0)
    costs: Annotated[
        str,
        Opt(
            "cost table of fused operators: auto (calibrated here, else shipped), shipped, or a .json file",
            record="contents",
        ),
    ] = "auto"
    compiler: Annotated[
        str,
        Opt(
            "C compiler of native kernels, with optional arguments: auto for $CC, gcc, clang or ziglang",
            record="contents",
        ),
    ] = "auto"
    cpu_level: Annotated[
        int | None, Opt("x86-64 level of native kernels: 2, 3 or 4; by default the level of the CPU")
    ] = None
    seed: Annotated[int, Opt("seed of generated inputs")] = 0
    weights: Annotated[
        WeightPlacement,
        Opt(
            "weights of written models: keep (unchanged ones stay in the data files of the original), copy"
            " (as in the original), inside, beside, or auto (keep in the folder of the original, else copy)"
        ),
    ] = "auto"
    allow_external: Annotated[
        tuple[Path, ...], Opt("additional folders of external data", record="private")
    ] = ()
    pipelines: Annotated[
        str,
        Opt(
            "pipelines of executors: preset (pipeline for all plans), or jit (plan-general, plan-profiled,"
            " ...)",
            cache="ignored",
            record="omitted",
        ),
    ] = "preset"
    log: Annotated[
        str,
        Opt(
            "passes or rule files, each optionally prefixed by '>' or '>>', joined by ':'",
            cache="bypass",
            record="omitted",
        ),
    ] = ""
    trace: Annotated[
        Path | None,
        Opt(
            "file to which events are appended; .json is Chrome's trace format, else JSON lines",
            cache="ignored",
            record="private",
        ),
    ] = None
    trace_format: Annotated[
        str,
        Opt("format of trace: auto (by the suffix), lines or chrome", cache="ignored", record="omitted"),
    ] = "auto"
    cache_dir: Annotated[Path, Opt("folder of the store", cache="ignored", record="private")] = Path(
        "~/.cache/graphopt"
    )
    cache_size: Annotated[
        int,
        Opt("maximum bytes of stored results, or with a unit: 4GiB", cache="ignored", record="omitted"),
    ] = 2 << 30
    cache_url: Annotated[
        str,
        Opt(
            "URL of stored results that machines share, for fsspec: s3://...",
            cache="ignored",
            record="private",
        ),
    ] = ""
    color: Annotated[
        bool | None,
        Opt("colours; by default only if the output is a terminal", cache="ignored", record="omitted"),
    ] = None
    debug: Annotated[bool, Opt("show the traceback of errors", cache="ignored", record="omitted")] = False

    def __post_init__(self) -> None:
        if self.cpu_level not in (None, 2, 3, 4):
            raise UsageError(f"cpu-level can't be {self.cpu_level}: give 2, 3 or 4")
        if self.pipelines not in ("preset", "jit"):
            raise UsageError(f"pipelines can't be {self.pipelines!r}: give preset or jit")
        if self.weights not in PLACES:
            raise UsageError(
                f"weights can't be {self.weights!r}: give {', '.join(PLACES[:-1])} or {PLACES[-1]}"
            )
        if self.trace_format not in ("auto", "lines", "chrome"):
            raise UsageError(f"trace-format can't be {self.trace_format!r}: give auto, lines or chrome")
        if options := getattr(self, "cuda_options"):  # noqa: B009  # a field of the subclass
            normal = as_texts(parse_cuda_options(options))
            object.__setattr__(self, "cuda_options", normal)
        for key in ("seed", "fold_limit", "time_limit", "memory_limit", "verify_seconds", "cache_size"):
            if not getattr(self, key) >= 0:
                raise UsageError(f"{key.replace('_', '-')} can't be {getattr(self, key)}: give 0 or more")

    def complete_options(self, options: OptimizeOptions) -> OptimizeOptions:
        """All options: the given ``options``, completed by these settings and then by defaults."""
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
            name: as_texts(cast(Iterable[str], value)) if kind == tuple[str, ...] else value
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
        """All settings; :class:`graphopt.OptimizeOptions` declares the options among them."""

        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, option: str) -> Any: ...

else:
    Settings = make_dataclass(
        "Settings",
        [(name, Annotated[kind, OPTIONS[name]], OPTIONS[name].default) for name, kind in _OF_OPTIONS.items()],
        bases=(_Settings,),
        frozen=True,
        namespace={
            "__module__": __name__,
            "__doc__": "Every setting. In the environment, a key is written as ``GRAPHOPT_FOLD_LIMIT``.",
        },
    )


@cache
def declarations() -> dict[str, Opt]:
    """The declaration of each setting, by name."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    return {item.name: hints[item.name].__metadata__[0] for item in fields(Settings)}


def describe() -> list[tuple[str, Any, str]]:
    """Key, default and description of each setting, for documentation."""
    defaults = {item.name: item.default for item in fields(Settings)}
    return [(_key(name), defaults[name], opt.help) for name, opt in declarations().items()]


def _key(name: str) -> str:
    """The setting ``name`` as users write it."""
    return name.replace("_", "-")


def as_toml(settings: Settings, *, private: bool = True, without: Collection[str] = ()) -> str:
    """``settings`` as the text of a ``graphopt.toml``, which :func:`load` parses to the same settings.

    Args:
        private: include settings that may contain credentials or folders of the user.
        without: names of settings to omit.
    """

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"[{', '.join(map(text, value))}]"
        plain = str(value.absolute()) if isinstance(value, Path) else value
        return json.dumps(plain, ensure_ascii=False)

    values = {
        name: getattr(settings, name)
        for name, opt in declarations().items()
        if (private or opt.record != "private") and name not in without
    }
    return "".join(f"{key} = {text(value)}\n" for key, value in values.items() if value is not None)


def shown(value: Any) -> str:
    """A value as users write it."""
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def typed_setting(key: str, item: Any, where: str) -> tuple[str, Any]:
    """Check the key and the value of a setting from the source ``where``; values given as text are parsed."""
    if key.replace("-", "_") == _FORMER and isinstance(item, bool):
        return "weights", _PLACES_OF_FORMER[item]
    name = _check_key(key, where)
    kind = _kinds()[name]
    kinds = (int, float) if kind is Seconds else typing.get_args(kind) or (kind,)
    if isinstance(item, str):
        return parse_setting(name, item, where)
    if isinstance(item, list | tuple) and typing.get_origin(kind) is tuple:
        value: Any = tuple(from_text(str(part), kinds[0]) for part in item)
    elif type(item) in kinds or (isinstance(item, Path) and Path in kinds):
        value = item
    else:
        written = json.dumps(item, ensure_ascii=False, default=str)
        raise UsageError(f"{where}: {written} is not a value for {key!r}; {_form(kind)}")
    _check_range(name, value, where)
    return name, value


#: A former setting that chose two of the values of ``weights``, accepted for one release.
_FORMER = "external_data"
_PLACES_OF_FORMER: dict[bool | None, str] = {True: "beside", False: "inside", None: "auto"}


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


def parse_setting(key: str, text: str, where: str) -> tuple[str, Any]:
    """The name and the value of a setting, parsed from ``text`` of the source ``where``.

    Raises:
        UsageError: the key is unknown, or the value does not fit it.
    """
    if key.replace("-", "_") == _FORMER:
        with contextlib.suppress(ValueError):
            return "weights", _PLACES_OF_FORMER[cast(bool | None, from_text(text, bool | None))]
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
        error = unknown(
            "setting", key, [item.replace("_", "-") for item in known], "graphopt config show lists all"
        )
        raise UsageError(f"{where}: {error.message}")
    return name


def _kinds() -> dict[str, Any]:
    return typing.get_type_hints(Settings)
