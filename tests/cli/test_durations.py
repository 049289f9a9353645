"""All options for times have the same syntax."""

from __future__ import annotations

import click
import pytest

from graphopt.cli.main import cli
from graphopt.cli.options.parameter_types import Seconds


def _times() -> list[tuple[str, click.Option]]:
    context = click.Context(cli)
    return [
        (f"{name} {option.opts[-1]}", option)
        for name in cli.list_commands(context)
        for option in getattr(cli.get_command(context, name), "params", ())
        if isinstance(option, click.Option) and option.name in ("seconds", "time_limit", "budget")
    ]


def test_every_time_is_of_one_type() -> None:
    found = _times()
    assert {"optimize --budget", "optimize --time-limit", "bisect --seconds", "bench --seconds"} <= {
        name for name, _ in found
    }
    for name, option in found:
        assert isinstance(option.type, Seconds), name
        assert [option.type.convert(text, option, None) for text in ("60", "60s", "1m")] == [60.0] * 3


def test_invalid_durations() -> None:
    for text in ("soon", "-1", "nan"):
        with pytest.raises(click.BadParameter, match="write 60s or 2m"):
            Seconds().convert(text, None, None)
    assert Seconds().convert("0s", None, None) == 0.0
    with pytest.raises(click.BadParameter, match="no time is left"):
        Seconds(positive=True).convert("0s", None, None)
