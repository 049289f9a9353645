"""Run commands that the caller of graphopt gives."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from graphopt import config


def run_caller_command(
    words: Sequence[str], folder: Path, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command ``words`` in ``folder``, and capture its output as text.

    Its environment is that of the caller, and bytes that are not text are replaced.

    Args:
        seconds: limit on wall-clock time.

    Raises:
        OSError: the command can't be started.
        subprocess.TimeoutExpired: it exceeds the limit.
    """
    return subprocess.run(
        words,
        cwd=folder,
        env=config.environment_of_caller(),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
