"""An interrupt while the command line is imported ends the process with one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

_ROOT = Path(__file__).parents[2]
#: Interrupts the process when it imports the module named by its first argument.
_PROGRAM = """
import runpy, signal, sys

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(Interrupt)
            if is_extension:  # which replaces the exception
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt as error:
                    raise ImportError("initialization failed") from error
            signal.raise_signal(signal.SIGINT)

module, is_extension = sys.argv[1], sys.argv[2] == "True"
sys.meta_path.insert(0, Interrupt)
sys.argv[1:] = ["passes"]
runpy.run_module("graphopt", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("is_extension", [False, True])
@pytest.mark.parametrize("module", ["graphopt.cli.main", "click", "graphopt.cli.commands.passes"])
def test_interrupt_during_an_import(module: str, is_extension: bool) -> None:
    words = [sys.executable, "-c", _PROGRAM, module, str(is_extension)]
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "graphopt: interrupted")
