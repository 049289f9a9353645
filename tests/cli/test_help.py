"""The help: commands by group, the options of every day, and all of them."""

from __future__ import annotations

import inspect
import pkgutil
import re
from typing import Any

import click
import pytest

from graphopt.cli import commands
from graphopt.cli.framework import command_list
from graphopt.cli.framework.help import HelpedCommand
from graphopt.cli.main import cli
from graphopt.settings import declarations
from tests.cli.conftest import Invoke

COMMANDS: dict[str, Any] = {
    name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(None)
}
#: Maximum number of own options of a command without a choice of common options.
FEW = 14


def own_options(command: click.Command) -> list[click.Option]:
    options = [item for item in command.params if isinstance(item, click.Option) and not item.hidden]
    return [item for item in options if hasattr(item, "section")]


def test_commands_are_grouped_the_most_useful_first(invoke: Invoke) -> None:
    lines = invoke("--help").out.splitlines()
    places = [lines.index(f"{title}:") for title in command_list.COMMANDS]
    assert places == sorted(places)
    assert lines[places[0] + 1].split()[0] == "optimize"
    listed = [found[1] for line in lines[places[0] :] if (found := re.match(r"  ([a-z-]+)  ", line))]
    assert sorted(listed) == sorted(COMMANDS) and listed != sorted(COMMANDS)


def test_the_list_of_commands_has_their_summaries() -> None:
    modules = {info.name.replace("_", "-") for info in pkgutil.iter_modules(commands.__path__)}
    listed = {name: text for section in command_list.COMMANDS.values() for name, text in section.items()}
    assert listed == {name: command.get_short_help_str(1000) for name, command in COMMANDS.items()}
    assert set(listed) == modules


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_many_options_are_left_to_the_long_help(invoke: Invoke, name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, HelpedCommand)
    own = {option.opts[0] for option in own_options(command)} | {
        option.opts[-1] for option in own_options(command)
    }
    assert len(command.everyday) <= 13 and set(command.everyday) <= own
    assert command.everyday or len(own_options(command)) <= FEW


def test_the_short_help_and_the_long_one(invoke: Invoke) -> None:
    short, whole = invoke("optimize", "--help").out, invoke("optimize", "--help-all").out
    assert short.index("Examples:") < short.index("Options:") and len(short.splitlines()) < 60
    assert whole.index("Examples:") < whole.index("Files:")
    command = COMMANDS["optimize"]
    assert isinstance(command, HelpedCommand)
    names = {option.opts[-1] for option in own_options(command)}
    listed = short.partition("In all commands")[0]
    described = set(re.findall(r"^  (?:-\w, )?(--?[\w-]+)", listed, re.M))
    assert described == {"--output", *command.everyday} - {"-o"}
    assert names <= set(re.findall(r"--?[\w-]+", whole))
    count = re.search(r"graphopt optimize --help-all lists (\d+) more options", short)
    assert count is not None and int(count[1]) == len(names) - len(described)
    assert "--debug" in short and "Show the traceback" not in short and "Show the traceback" in whole


def test_commands_with_few_options_have_one_help(invoke: Invoke) -> None:
    outcome = invoke("inspect", "--help")
    assert "--help-all" not in outcome.out and "Show the traceback" in outcome.out
    assert invoke("inspect", "--help-all") == outcome


def meaning(option: click.Option) -> str:
    """The help text without the default value."""
    return re.sub(r"\s+", " ", re.sub(r" *\[default: .*\]$", "", option.help or "")).strip()


#: Options whose meaning depends on the command.
SPECIFIC = {"--output", "--exact", "--fast-math", "--device", "--dim", "--profile"} | {
    "--plot", "--seconds", "--rounds", "--budget", "--wrt", "--fuser", "--share-buffers", "--weights",
    "--input-shape", "--check",
}  # fmt: skip


def test_an_option_has_one_text_in_all_commands() -> None:
    texts: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option):
                assert meaning(option) and meaning(option).endswith((".", ")")), option.opts
                texts.setdefault(option.opts[-1], set()).add(meaning(option))
    assert {name for name, found in texts.items() if len(found) > 1} == SPECIFIC


def test_help_has_one_notation_for_shapes(invoke: Invoke) -> None:
    for name in COMMANDS:
        text = invoke(name, "--help-all").out
        assert not re.search(r"--input-shape \w+:\d+,\d+(?![x\d])", text) and "1,3,224" not in text


@pytest.mark.parametrize("arguments", [("sample",), ("completion",), ("passes",), ("pipelines",)])
def test_help_lists_verbose_only_if_it_has_an_effect(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    assert "--verbose" not in invoke(*arguments, "--help").out
    assert invoke(*arguments, "-v").out == invoke(*arguments).out
    assert "--verbose" in invoke("inspect", "--help").out


def test_short_help_counts_the_omitted_options(invoke: Invoke) -> None:
    """train-step accepts ``-v``, but its help does not list it."""
    short, whole = (invoke("train-step", text).out for text in ("--help", "--help-all"))
    common = re.search(r"In all commands: (.*?)\n  graphopt", short, re.DOTALL)
    assert common is not None and common[1].split() == [
        "--json",
        "-q",
        "--set",
        "--trace",
        "--trace-format",
        "--config",
        "--debug",
        "--save-repro",
        "-h",
    ]
    listed = (short.replace(common[0], ""), whole)
    shown, all_options = (len(re.findall(r"^ +(?:-\w, )?--\w", text, re.M)) for text in listed)
    more = all_options - shown - len(common[1].split()) - 1  # --help-all itself
    assert f"lists {more} more options." in short


def test_no_command_has_a_parameter_of_its_own_with_the_name_of_a_setting() -> None:
    """Values with these names become settings, and are not passed to the command."""
    settings = declarations()
    clashes = [
        (name, parameter)
        for name, command in COMMANDS.items()
        if command.callback is not None
        for parameter in inspect.signature(command.callback).parameters
        if parameter in settings
    ]
    assert clashes == []
