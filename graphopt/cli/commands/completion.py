"""graphopt completion: the script by which a shell completes names."""

from __future__ import annotations

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.output.command_output import Output

EXAMPLE = """
graphopt completion
graphopt completion bash
"""

#: The line that enables completion permanently in each shell, and the file for it.
_SETUPS = {
    "bash": ('eval "$(graphopt completion bash)"', "~/.bashrc"),
    "zsh": ('eval "$(graphopt completion zsh)"', "~/.zshrc, below compinit"),
    "fish": ("graphopt completion fish | source", "~/.config/fish/config.fish"),
}
#: Read by click when the shell's script requests names.
_VARIABLE = "_GRAPHOPT_COMPLETE"


@command_decorator.command(
    "completion", example=EXAMPLE, needs_settings=False, has_details=False, libraries=None
)
@click.argument("shell", required=False, type=click.Choice([*_SETUPS]), metavar="[bash|zsh|fish]")
def command(run: Run, shell: str | None) -> Output:
    """Print a shell completion script.

    Without SHELL, shows the setup. The script completes commands, options, files, and names of passes, rules,
    pipelines, settings and devices.
    """
    if shell is None:
        setup = {name: line for name, (line, _) in _SETUPS.items()}
        text = [f"  {name:5} {line:40} # in {file}" for name, (line, file) in _SETUPS.items()]
        return Output({"setup": setup}, text)
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    application = click.get_current_context().find_root().command
    script = completion(application, {}, "graphopt", _VARIABLE).source()
    return Output({"shell": shell, "script": script}, [script])
