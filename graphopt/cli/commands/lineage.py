"""graphopt lineage: the original nodes of a node of a result, and the results of an original node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import Block, Line, escaped, shortened

if TYPE_CHECKING:
    from graphopt.instrument.lineage import Fate, NodeLineage, Step

EXAMPLE = """
graphopt lineage model.onnx logits -O3
graphopt lineage model.onnx /encoder/layer.0/attention/MatMul --json
graphopt optimize model.onnx -o model.opt.onnx -O3 --provenance
graphopt lineage model.opt.onnx logits
"""

#: Maximum number of names without -v.
_NAMES = 12
#: The note about a result without recorded lineage.
_NOT_RECORDED = (
    "  {} is a result without recorded lineage, and is used as the original; optimize --provenance records it"
)


@command_decorator.command(
    "lineage", example=EXAMPLE, everyday="-O --pipeline --passes --fuser --skip --exact --device --dim"
)
@click.argument("model", type=reads_model, metavar="MODEL")
@click.argument("node", metavar="NODE")
@shared_options.pipeline_options
@shared_options.target_options
@shared_options.dim_options
@shared_options.model_options
def command(run: Run, model: Path, node: str) -> Output:
    """Show the original nodes of a node, and their rewrites.

    NODE is the name of a node or of one of its outputs. MODEL is a result of optimize --provenance, or
    an original model, which is optimized again. For a node of the result, shows the original nodes
    that it replaces, and the passes and rules in order. For an original node, shows the nodes of the result
    that replace it, and its rewrites in order. If the result lacks the node, the last rewrite removed it.
    """
    from graphopt.api import load_model
    from graphopt.instrument.lineage import KEY as LINEAGE
    from graphopt.recorded_settings.record import KEY as SETTINGS

    with run.console.progress(model.name) as advance:
        advance(None, "optimizing")
        loaded = load_model(model)
        recorded, is_result = LINEAGE in loaded.metadata_props, SETTINGS in loaded.metadata_props
        found = run.compiler.lineage(loaded)
    back, forward = found.back(node), found.forward(node)
    if back is None and forward is None:
        raise found.unknown(node, loaded)
    data = {
        "model": str(model),
        "back": None if back is None else back.to_dict(),
        "forward": None if forward is None else forward.to_dict(),
    }
    notes = [] if recorded or not is_result else [_NOT_RECORDED.format(model)]
    return Output(data, _text(back, forward, everything=run.verbose > 0), notes=notes)


def _text(back: NodeLineage | None, forward: Fate | None, *, everything: bool) -> Iterator[Block]:
    if back is not None:
        yield Line(escaped(f"node of the result: {back.name}"), "title")
        if back.is_original:
            yield "  unchanged, from the original"
        else:
            yield from _names("from", back.originals, everything)
            yield from _names("also replaces", back.absorbed, everything)
            yield from _steps("derived by", back.steps)
        yield from _names("reads constants folded from", back.folded, everything)
    if forward is not None:
        yield Line(escaped(f"node of the original: {forward.name}"), "title")
        if forward.nodes == (forward.name,) and not forward.steps:
            yield "  unchanged in the result"
            return
        yield from _names("in the result", forward.nodes, everything)
        yield from _names("also computed by", forward.absorbed, everything)
        yield from _names("folded into constants of", forward.folded, everything)
        if not forward.nodes and not forward.absorbed and not forward.folded:
            yield "  not in the result"
        yield from _steps("rewritten by", forward.steps)


def _names(title: str, names: Sequence[str], everything: bool) -> Iterator[str]:
    if names:
        yield f"  {title}: {shortened(names, len(names) if everything else _NAMES)}"


def _steps(title: str, steps: Sequence[Step]) -> Iterator[str]:
    if steps:
        from graphopt.instrument.lineage import step_texts

        yield f"  {title}: {', '.join(step_texts(steps))}"
