"""Options that require or exclude others, in all commands."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from graphopt.cli.main import cli, main
from graphopt.cli.options import option_relations


def _commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def _related() -> list[tuple[str, option_relations.Option, str, bool]]:
    """Each relation: the command, the option, the other, and whether they exclude each other."""
    found = []
    for name, command in sorted(_commands().items()):
        for param in command.params:
            if isinstance(param, option_relations.Option):
                found += [(name, param, other, True) for other in param.excludes]
                found += [(name, param, param.requires, False)] if param.requires else []
    return found


def test_relations_name_existing_options() -> None:
    assert len(_related()) > 20
    for name, _, other, _ in _related():
        option_relations.named(_commands()[name], other)


@pytest.mark.parametrize(
    ("name", "param", "other", "exclude"),
    _related(),
    ids=lambda item: item.label if isinstance(item, option_relations.Option) else str(item),
)
def test_each_is_checked(
    name: str,
    param: option_relations.Option,
    other: str,
    exclude: bool,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    required = [
        each for each in _commands()[name].params if isinstance(each, click.Argument) and each.required
    ]
    arguments = [name, str(tmp_path / "m.onnx"), *("n" for _ in required[1:]), *_given(param)]
    for wanted in _commands()[name].params:
        if wanted.required and isinstance(wanted, click.Option):
            arguments += _given(wanted)
    if exclude and param.requires is not None:
        arguments += _given(option_relations.named(_commands()[name], param.requires))
    if exclude:
        arguments += _given(option_relations.named(_commands()[name], other))
    assert main(arguments, {}) == 2
    said = f"{other} and {param.label} exclude each other" if exclude else f"{param.label} requires {other}"
    assert said in capsys.readouterr().err


def _given(param: click.Parameter) -> list[str]:
    """The option with some value."""
    assert isinstance(param, click.Option)
    values = {
        "--dim": "B=2",
        "--dim-range": "B=1:2",
        "--dim-relation": "A=B+1",
        "--share-buffers": "a=b",
        "--input-shape": "x:1",
        "-O": "2",
    }
    if param.is_flag:
        return [param.opts[0]]
    if isinstance(param.type, click.Choice):
        return [param.opts[0], str(param.type.choices[0])]
    return [param.opts[0], values.get(param.opts[0], "1s" if param.opts[0] == "--budget" else "1")]
