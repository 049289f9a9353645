"""Names of other tools yield a hint with graphopt's equivalent command or option."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from graphopt.cli.framework import names_in_other_tools
from graphopt.cli.main import cli
from tests.cli.conftest import Invoke

NAMES = cli.list_commands(None)


def options_of(name: str) -> set[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {opt for item in command.params for opt in (*item.opts, *item.secondary_opts)}


@pytest.mark.parametrize("meaning", sorted(set(names_in_other_tools.COMMANDS.values())))
def test_commands_that_hints_name_exist(meaning: str) -> None:
    name, *rest = meaning.split()
    assert name in NAMES
    used = {"-O" if word.startswith("-O") else word for word in rest if word.startswith("-")}
    assert used <= options_of(name)


def test_no_command_is_its_own_synonym() -> None:
    assert not set(NAMES) & {*names_in_other_tools.COMMANDS, *names_in_other_tools.ELSEWHERE}
    assert not set(names_in_other_tools.COMMANDS) & set(names_in_other_tools.ELSEWHERE)
    assert len(names_in_other_tools.COMMANDS) > 20 and len(names_in_other_tools.OPTIONS) > 20


def test_options_that_hints_name_exist() -> None:
    known = {opt for name in NAMES for opt in options_of(name)}
    for option, meaning in names_in_other_tools.OPTIONS.items():
        ours = [word for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", meaning)]
        assert set(ours) <= known, option
        assert option not in options_of("optimize"), option


@pytest.mark.parametrize("name", NAMES)
def test_hints_name_options_of_the_command(name: str) -> None:
    known = options_of(name)
    for option in names_in_other_tools.OPTIONS:
        hint = names_in_other_tools.for_option(option, known)
        assert hint is None or set(names_in_other_tools.options_in(hint)) <= known


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["simplify", "a.onnx", "b c.onnx"], "hint: graphopt optimize a.onnx 'b c.onnx'"),
        (["Slim", "a.onnx"], "hint: graphopt optimize a.onnx"),
        (["shape_infer", "a.onnx"], "hint: graphopt dump a.onnx"),
        (["equal", "a.onnx", "b.onnx"], "hint: graphopt verify a.onnx b.onnx"),
        (["visualize"], "hint: graphopt view"),
        (["plot"], "hint: graphopt dump --format dot"),
        (["benchmark"], "hint: graphopt bench"),
        (["quantize", "a.onnx"], "onnxruntime.quantization"),
        (["fp16"], "keeps the dtypes"),
        (["convert-to-ort", "a.onnx"], "convert_onnx_models_to_ort"),
        (["help", "simplify"], "hint: graphopt optimize --help"),
        (["optimize", "--level", "3"], "hint: -O0, -O1, -O2 or -O3"),
        (["optimize", "--opset", "17"], "hint: --target-opset N"),
        (["optimize", "--input-shapes", "x:1,4"], "--input-shape NAME:1x3x224x224"),
        (["run", "--input-shapes", "x:1,4"], "hint: --input-shape NAME:1x3x224x224 for generated inputs"),
        (["inspect", "--shapes", "x:1,4"], "hint: --dim NAME=SIZE fixes a dynamic dim"),
        (["kernels", "--batch", "4"], "hint: graphopt kernels --help"),
        (["kernels", "--dynamic-input-shape", "x:1,4"], "hint: nearest: --input-shape"),
        (["run", "--check"], "hint: nearest: "),
        (["optimize", "--overwrite-input-shape", "x:1,4"], "--dim NAME=SIZE"),
        (["optimize", "--no-check"], "hint: --no-verify"),
        (["optimize", "--dtype", "fp16"], "keeps the dtypes"),
        (["optimize", "--batch", "4"], "--dim batch=N"),
        (["bench", "--gpu"], "hint: --device cuda"),
        (["-O3", "a.onnx"], "hint: options follow the command: graphopt optimize -O3 a.onnx"),
        (["--no-verify", "a.onnx"], "hint: options follow the command: graphopt optimize --no-verify a.onnx"),
        (["--foo"], "hint: graphopt optimize --help"),
        (["-x.onnx"], "hint: write ./-x.onnx for the file"),
        (["inspect", "-x.onnx"], "hint: write ./-x.onnx for the file"),
        (["-q", "dump", "a.onnx"], "hint: options follow the command: graphopt dump -q a.onnx"),
        (["doctor", "--gpu"], "hint: --device cuda"),
        (["replay", "--gpu"], "hint: graphopt replay --help"),  # has no --device
        (["aot", "a.onnx"], "hint: graphopt compile a.onnx"),
        (["freeze", "a.onnx"], "hint: graphopt optimize --pipeline freezing a.onnx"),
        (["load", "m.gopt"], "hint: graphopt run m.gopt"),
        (["settings", "m.gopt"], "hint: graphopt config show m.gopt"),
        (["inspect", "-O2"], "hint: -O is an option of graphopt optimize; graphopt inspect --help lists"),
        (["optimize", "--bundle"], "hint: --emit bundle, with --profile FILE.json"),
        (["optimize", "--exat"], "hint: nearest: --exact  (graphopt optimize --help)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_hints(invoke: Invoke, arguments: list[str], hint: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 2 and outcome.out == ""
    message, line = outcome.err.strip().splitlines()
    assert message.startswith("graphopt: no ") and hint in line


def test_help_and_version_are_also_commands(invoke: Invoke) -> None:
    assert invoke("help") == invoke("--help")
    assert invoke("help", "dump") == invoke("dump", "--help")
    assert invoke("version") == invoke("-V") == invoke("--version")
    assert invoke("version").status == 0


def test_paths_are_commands_of_optimize(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").touch()
    for words in (["m.onnx"], ["-"], ["folder/", "-q"], ["weights"], ["https://a.b/c"]):
        assert names_in_other_tools.expand_shorthands(words, NAMES) == ("optimize", "--dry-run", *words)
    for words in (["m.onnx", "-o", "out.onnx"], ["m.onnx", "--output=out.onnx"], ["m.onnx", "-oout.onnx"]):
        assert names_in_other_tools.expand_shorthands(words, NAMES) == ("optimize", *words)
    for words in (["dump", "m.onnx"], ["simplify", "m.onnx"], ["--help"], [], ["-q", "m.onnx"]):
        assert names_in_other_tools.expand_shorthands(words, NAMES) == tuple(words)
