"""The console script."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import click

from graphopt.errors import ExitStatus, GraphoptError


class LazyGroup(click.Group):
    """A group whose commands are the modules of a package, imported when they are asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        """The names of all commands."""
        from graphopt.cli import commands

        return sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(commands.__path__))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the module of command ``name``."""
        if name not in self.list_commands(context):
            return None
        return importlib.import_module(f"graphopt.cli.commands.{name.replace('-', '_')}").command


@click.group(cls=LazyGroup)
def cli() -> None:
    """Optimize ONNX models."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        cli.main(args=list(argv) if argv is not None else None, prog_name="graphopt", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return ExitStatus.USAGE
    except GraphoptError as error:
        print(f"graphopt: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.status
    return ExitStatus.OK
