"""graphopt optimize: make a model smaller and faster."""

from __future__ import annotations

import click


@click.command("optimize")
@click.argument("source")
@click.option("-o", "--output", "target", required=True)
@click.option("-O", "level", default="2")
@click.option("--verify/--no-verify", default=True)
def command(source: str, target: str, level: str, verify: bool) -> None:
    """Make a model smaller and faster."""
    from graphopt import api

    model = api.load(source)
    api.optimize(model, level=f"O{level}")
    api.save(model, target)
