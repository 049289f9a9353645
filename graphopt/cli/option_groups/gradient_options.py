"""``--by-group`` and ``--fuser`` of commands that write differentiated models."""

from __future__ import annotations

import click

from graphopt.cli.options.table_options import Decorator


def by_group_option() -> Decorator:
    """``--by-group``, which differentiates groups of nodes (docs/gradients.md)."""
    decorator: Decorator = click.option(
        "--by-group",
        is_flag=True,
        help="Differentiate groups of nodes: each becomes a forward and a backward function. Parameters"
        " whose gradients depend on an operator without a gradient are left out.",
    )
    return decorator


def gradient_fuser_option() -> Decorator:
    """``--fuser``, which fuses nodes after differentiation (docs/training.md)."""
    decorator: Decorator = click.option(
        "--fuser",
        type=click.Choice(["none", "builtin", "native"]),
        help="Fuse nodes of the result, and verify it: builtin (operators of onnxruntime), or native (also"
        " compiled kernels, in OUT as *.kernels.so).  [default: none]",
    )
    return decorator
