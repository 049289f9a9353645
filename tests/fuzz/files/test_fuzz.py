"""Broken models never end in a traceback, an internal error or a dead process."""

from __future__ import annotations

import os
import subprocess
import sys

import onnx.checker
import onnx.parser
import pytest

from tests.fuzz.files import run
from tests.fuzz.files.sources import SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_the_models_are_valid_before_they_are_broken(name: str) -> None:
    onnx.checker.check_model(onnx.parser.parse_model(SOURCES[name]), full_check=True)


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_broken_models_give_a_result_or_a_clear_error(cases: int) -> None:
    found = run.run(0, 0, cases)
    assert len(found) == cases
    assert [ended for ended in found if ended.is_fault] == []
    assert {0, 3} <= {ended.status for ended in found}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the search forks")
@pytest.mark.parametrize(
    "arguments", [["--only", "run"], pytest.param(["--cases", "300"], marks=pytest.mark.slow)]
)
def test_meaningless_operators_do_not_crash_commands(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tests.fuzz.files.malformed", "--cases", "2", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0 and "0 faults" in done.stdout, done.stdout + done.stderr
