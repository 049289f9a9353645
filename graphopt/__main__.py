"""The command line as a process: the console script, and ``python -m graphopt``.

This module imports little, so that an interrupt (Ctrl-C) during the imports of the command line is also
reported in one line.
"""

import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line, and end the process."""
    try:
        from graphopt.cli.main import run as run_command_line

        run_command_line()
    except (KeyboardInterrupt, ImportError) as error:
        from graphopt.errors import ExitStatus, is_interruption

        if not is_interruption(error):
            raise
        print("graphopt: interrupted", file=sys.stderr)
        sys.exit(ExitStatus.INTERRUPTED)


if __name__ == "__main__":
    run()
