"""An interrupt while ``--json`` is written does not truncate the value, unless the reader exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the number of bytes in a pipe")

#: Longer than the buffer of a pipe.
_LENGTH = 1 << 20

_PROGRAM = """
import sys
from pathlib import Path
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.console import Console

value = {"models": "m" * int(sys.argv[1])}
Output(value, report_file=Path(sys.argv[2])).show(Console(as_json=True))
"""


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def interrupted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that writes JSON to a full pipe, and has received SIGINT."""
    words = [sys.executable, "-c", _PROGRAM, str(_LENGTH), str(tmp_path / "report.json")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": request.param}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environ, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        while _unread(process.stdout.fileno()) < 1 << 12 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)  # otherwise, the reader might be faster than the signal
        yield process


def _unread(descriptor: int) -> int:
    """The number of bytes in a pipe."""
    import array
    import fcntl
    import termios

    found = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, found)
    return found[0]


def test_value_is_complete_and_that_of_the_report(interrupted: subprocess.Popen[str], tmp_path: Path) -> None:
    out, err = interrupted.communicate(timeout=60)
    assert json.loads(out) == {"models": "m" * _LENGTH} == json.loads((tmp_path / "report.json").read_text())
    assert "KeyboardInterrupt" in err, "the interrupt follows the output"


def test_exit_of_the_reader_ends_the_process(interrupted: subprocess.Popen[str]) -> None:
    assert interrupted.stdout is not None and interrupted.stderr is not None
    interrupted.stdout.close()
    err = interrupted.stderr.read()
    assert interrupted.wait(timeout=60) != 0 and "BrokenPipeError" in err
