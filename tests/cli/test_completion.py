"""Completion of names in shells, and the completion scripts."""

from __future__ import annotations

import shutil
import subprocess

import click
import pytest
from click.shell_completion import ShellComplete

from graphopt import config
from graphopt.cli.main import cli
from graphopt.passes.pipelines import PIPELINES
from tests.cli.conftest import Invoke


def completions(*words: str) -> list[str]:
    """Completions of the last of ``words``."""
    shell = ShellComplete(cli, {}, "graphopt", "_GRAPHOPT_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["optim"], ["optimize"]),
        (["optimize", "--passes", "cs"], ["cse"]),
        (["optimize", "--passes", "dce,cs"], ["dce,cse"]),
        (["optimize", "--pipeline", "dce,fixpoint(cs"], ["dce,fixpoint(cse"]),
        (["optimize", "--skip", "drop-id"], ["drop-identity"]),
        (["optimize", "--only", "identiti"], ["identities"]),
        (["optimize", "--log", "dce:>>peep"], ["dce:>>peephole"]),
        (["optimize", "--set", "fold-l"], ["fold-limit="]),
        (["optimize", "--device", "cu"], ["cuda"]),
        (["optimize", "--post-pass", "cs"], ["cse"]),
        (["optimize", "--fuser", "na"], ["native"]),
        (["model.onnx", "--fuser", "na"], ["native"]),
        (["-", "--fuser", "na"], ["native"]),
        (["explain", "--pattern", "attentio"], ["attention"]),
        (["bench", "--against", "original,onnxsl"], ["original,onnxslim"]),
        (["passes", "peep"], ["peephole"]),
        (["pipelines", "show", "noo"], ["noopt"]),
        (["completion", "f"], ["fish"]),
        (["nothing", "--fuser", "na"], []),
    ],
    ids=" ".join,
)
def test_names_are_completed(words: list[str], expected: list[str]) -> None:
    assert [name for name in completions(*words) if name in expected] == expected
    assert all(name.startswith(words[-1]) for name in completions(*words))


def test_all_names_are_completed() -> None:
    assert set(PIPELINES) <= set(completions("optimize", "--pipeline", ""))
    assert len(completions("doctor", "--set", "")) == len(config.Settings.__dataclass_fields__)
    assert completions("model.on") == ["model.on"]  # a file: the shell looks for it


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(invoke: Invoke, shell: str) -> None:
    outcome = invoke("completion", shell)
    assert outcome.status == 0 and f"_GRAPHOPT_COMPLETE={shell}_complete" in outcome.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=outcome.out, text=True, check=True)
    assert f"graphopt completion {shell}" in invoke("completion").out
    assert invoke("completion", "tcsh").status == 2


def test_every_option_for_passes_and_devices_is_completed() -> None:
    for name in cli.list_commands(None):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for option in command.params:
            if {"--passes", "--skip", "--only", "--pipeline", "--device", "--log"} & set(option.opts):
                assert option._custom_shell_complete is not None, (name, option.opts)
