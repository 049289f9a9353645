"""Training: the loss over steps and over time."""

from __future__ import annotations

from graphopt.page.block_html import html_of_blocks
from graphopt.page.section import PageSource, Section
from graphopt.util.text_tables import counted, human_seconds

#: Maximum number of points of the curve; a point is the mean of consecutive steps.
_POINTS = 2_000


def build(source: PageSource) -> Section | None:
    """The section; ``None`` without recorded losses."""
    losses = source.losses
    if not losses:
        return None
    width = -(-len(losses) // _POINTS)
    groups = [losses[first : first + width] for first in range(0, len(losses), width)]
    data = {
        "step": [group[-1].step for group in groups],
        "loss": [sum(one.loss for one in group) / len(group) for group in groups],
        "seconds": [group[-1].seconds for group in groups],
        "mean_of": width,
    }
    first, last, least = losses[0], losses[-1], min(losses, key=lambda one: one.loss)
    text = [
        f"{counted(len(losses), 'step')} in {human_seconds(last.seconds)}",
        f"loss {first.loss:.4g} at step {first.step:,}, {last.loss:.4g} at step {last.step:,};"
        f" the least is {least.loss:.4g} at step {least.step:,}",
    ]
    return Section("training", "Training", 70, html_of_blocks(text), data)
