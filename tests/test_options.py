"""The table of options, from which keywords, flags, settings and documentation are derived."""

from __future__ import annotations

import inspect

import click
import pytest
from click.testing import CliRunner

import graphopt
from graphopt import config, optimize_options
from graphopt.cli.commands.optimize import command
from graphopt.cli.options import shared_options as cli_options
from graphopt.errors import UsageError
from graphopt.optimize_options import OPTIONS
from graphopt.util.option_table import Opt


def test_each_option_is_a_keyword_of_optimize_and_documented() -> None:
    parameters = inspect.signature(graphopt.optimize).parameters
    assert list(parameters) == ["model", *OPTIONS]
    assert all(
        f"{name}: {opt.help[:20]}" in (graphopt.optimize.__doc__ or "") for name, opt in OPTIONS.items()
    )


def test_each_flag_is_an_option_of_the_command_line() -> None:
    params = {str(param.name): param for param in command.params}
    for name, opt in OPTIONS.items():
        if opt.flag:
            assert "/".join([*params[name].opts, *params[name].secondary_opts]) == opt.flag
            assert getattr(params[name], "section", None) == opt.section


def test_each_setting_has_the_default_of_its_option() -> None:
    defaults = config.Settings()
    for name, opt in OPTIONS.items():
        if opt.setting is not None:
            assert getattr(defaults, name) == opt.default and isinstance(getattr(defaults, name), object)
    assert config.load({"GRAPHOPT_FOLD_LIMIT": "2KiB"}, file=False).fold_limit == 2048


def test_relations_name_options() -> None:
    for opt in OPTIONS.values():
        assert OPTIONS.keys() >= {*opt.excludes, *opt.needs}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"exact": True, "fast_math": True}, "exact and fast_math exclude each other"),
        ({"verify": False, "require_verified": True}, "require_verified requires verify"),
        ({"pipeline": "O1", "fuser": "ort"}, "fuser and pipeline exclude each other"),
    ],
)
def test_python_and_the_command_line_check_the_same_relations(
    given: optimize_options.OptimizeOptions, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        graphopt.optimize("no such file", **given)
    with pytest.raises(UsageError) as caught:
        config.defaults().having({k: v for k, v in given.items() if v is False}).check(  # type: ignore[misc]
            {name for name, value in given.items() if value is not False}, str.upper
        )
    assert caught.value.message.lower() == message


def test_relations_with_settings() -> None:
    with config.patch(exact=True), pytest.raises(UsageError, match="exact and fast_math"):
        graphopt.optimize("no such file", fast_math=True)
    with config.patch(require_verified=True):  # a setting that is idle without verification is no error
        assert not config.current().having({"verify": False}).verify


def test_a_new_entry_becomes_an_option_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Opt("Maximum number of rounds.", "Passes", "--rounds", metavar="N", default=3, setting=int)
    monkeypatch.setitem(OPTIONS, "rounds", entry)

    @click.command()
    @cli_options.named("Passes", "rounds")
    def show(rounds: int | None) -> None:
        click.echo(rounds)

    assert CliRunner().invoke(show, ["--rounds", "5"]).output == "5\n"
    assert "Maximum number of rounds.  [default: 3]" in CliRunner().invoke(show, ["--help"]).output
    assert CliRunner().invoke(show, ["--rounds", "-1"]).exit_code == 2
