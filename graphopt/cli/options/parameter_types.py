"""Types of parameters: the kind of value, and whether it names files to read or to write.

The reproducer of a command (:mod:`graphopt.cli.reproducer.recording`) contains the files that parameters of
these types name.
"""

from __future__ import annotations

import errno
import math
import os
import re
from pathlib import Path
from typing import Any

import click

from graphopt.errors import UsageError, not_downloaded

#: Maximum number of characters of an invalid path in messages.
_SHOWN = 80


def _shortened(path: str) -> str:
    """``path``, or its beginning if it is long."""
    return path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"


class _Named(click.Path):
    """A nonempty path: an unset shell variable must not mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("it is empty", param, context)
        try:
            os.stat(value)
        except ValueError:  # a NUL in the path, which the reader or writer reports
            pass
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # every use of the path reports the error
                raise UsageError(f"{_shortened(value)}: {error.strerror}") from None
        return super().convert(value, param, context)


class Number(click.FloatRange):
    """A number in a range. NaN is rejected, because comparisons with it would accept everything."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, context)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, context)
        return number


class ReadsModel(_Named):
    """The file of a model that is read; ``-`` is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """The path; for standard input, the path of a temporary copy."""
        url = not_downloaded(value) if isinstance(value, str) and not os.path.exists(value) else None
        if url is not None:
            raise url
        if value == "-" and context is not None and not context.resilient_parsing:
            from graphopt.cli.files.standard_input import read_model

            return read_model(context)
        return super().convert(value, param, context)


class ReadsFolder(_Named):
    """A folder that is read."""


class ReadsData(_Named):
    """A file, or a folder of files, that is read and is not a model.

    Args:
        replaceable: whether the command may write its result over the file.
    """

    def __init__(self, *arguments: Any, replaceable: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.replaceable = replaceable

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """The path."""
        _check_no_named_pipe(str(value), "a file")
        return super().convert(value, param, context)


class Writes(_Named):
    """A file or folder that is written.

    Args:
        in_place: whether the path may be a file that the command also reads.
        folder: whether the path may be a folder.
    """

    def __init__(self, *arguments: Any, in_place: bool = False, folder: bool = True, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.in_place, self.folder = in_place, folder


class ReadsArrays(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """``NAME:FILE.npy`` or ``FILE.npz``: a file of arrays that is read."""

    name = "arrays"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """The text."""
        _check_no_named_pipe(str(value), "a file of arrays")
        _check_no_named_pipe(str(value).rpartition(":")[2], "a file of arrays")
        return value


def _check_no_named_pipe(path: str, kind: str) -> None:
    """Refuse a named pipe, which blocks until a process writes to it, unlike ``<(command)`` of a shell."""
    if Path(path).is_fifo() and os.path.exists(os.path.realpath(path)):
        raise UsageError(
            f"{path} is a device or a pipe, not {kind}", hint="save its contents to a file first"
        )


class Runs(click.ParamType):  # type: ignore[type-arg]
    """A command that is run."""

    name = "command"


_MOST = 2**31 - 1


class Count(click.IntRange):
    """A whole number in ASCII digits; Python itself also accepts ``1_0`` and the digits of all scripts."""

    name = "n"

    def __init__(self, least: int, most: int = _MOST) -> None:
        super().__init__(least, most)

    def _describe_range(self) -> str:
        """The range for the help, without a maximum that is only the limit of an integer."""
        return "" if (self.max or 0) >= _MOST else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """The value as an int."""
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", value) is None:
            self.fail(f"{value!r} is no whole number, or a very long one", param, context)
        if (self.max or 0) >= _MOST and int(value) < (self.min or 0):
            self.fail(f"{int(value)} is less than {self.min}", param, context)
        return super().convert(value, param, context)


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, such as 65536, 64KiB or 1MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Bytes as an int."""
        from graphopt.util.parse_values import parse_size

        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError:
            self.fail(f"{value!r} is no size; write 65536, 64KiB or 1MB", param, context)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A time, such as 90, 60s or 2m.

    Args:
        positive: refuse 0.
    """

    name = "time"

    def __init__(self, positive: bool = False) -> None:
        self._positive = positive

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        """Seconds as a float."""
        from graphopt.util.parse_values import parse_seconds

        try:
            seconds = value if isinstance(value, float) else parse_seconds(value)
        except ValueError:
            self.fail(f"{value!r} is no time; write 60s or 2m", param, context)
        if self._positive and not seconds:
            self.fail("no time is left to measure or compare in; write 60s or 2m", param, context)
        return seconds


reads_model = ReadsModel(path_type=Path)
reads_folder = ReadsFolder(path_type=Path)
reads_data = ReadsData(path_type=Path)
reads_replaceable_data = ReadsData(path_type=Path, replaceable=True)
writes = Writes(path_type=Path)
writes_file = Writes(path_type=Path, folder=False)
writes_model = Writes(path_type=Path, in_place=True)


def split_names(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Names, given in several options or separated by commas."""
    from graphopt.util import parse_values

    return tuple(parse_values.split_names(values))


def split_some(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Like :func:`split_names`; an empty list is an error, because it is equal to an omitted option."""
    names = split_names(context, param, values)
    if values and not names:
        raise UsageError(f"{param.opts[0]} names nothing", hint="leave it out, or name something")
    return names
