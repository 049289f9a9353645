"""Commands that fail, and commands that could not run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from graphopt.debug.checks import CheckOptions
from graphopt.debug.command_checks import CommandNotRun, check_ran
from graphopt.errors import UsageError

GONE = "python: can't open file '/tmp/gone.py': [Errno 2] No such file or directory"


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("gone", 127, "gone: not found"),
        ("python gone.py", 2, GONE),
        ("sh -c 'python gone.py $0'", 2, GONE),
        ("python -m gone", 1, "/usr/bin/python: No module named gone"),
    ],
)
def test_commands_with_missing_files_did_not_run(
    command: str, status: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandNotRun, match="could not run"):
        check_ran(shlex.split(command), tmp_path, status, said)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python check.py Neg", "No such file: gold for Neg"),
        ("python check.py", "check.py: outputs differ"),
        ("python -m check", "a node is gone"),
    ],
)
def test_failures_of_a_command_are_verdicts(command: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "check.py").touch()
    check_ran(shlex.split(command), tmp_path, 3, said)


def test_a_command_may_not_contain_nul() -> None:
    with pytest.raises(UsageError, match="NUL"):
        CheckOptions("\0 {model}")
