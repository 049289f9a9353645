"""Integers that static specialization leaves unknown: operands such as the shape of a Reshape.

    python -m benchmarks.unknown_integers DIR --docs docs/specialize.md

Each model is specialized for one profiled run: for the sizes of its inputs, the contents of small integer
inputs, and the shapes of intermediate values whose shapes depend on data. The table lists the models in which
such an operand of an operator is still no constant. A guard on its profiled contents would have something to
specialize only there.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import graphopt
from benchmarks import doc_tables, measured_models
from benchmarks.inputs import Feeds, make_feeds
from graphopt import ir
from graphopt.context import context_for
from graphopt.passes.pipelines import make_pipeline
from graphopt.profile import Guard
from graphopt.specialization.specialize_inputs import specialize_inputs

#: Inputs that determine sizes, positions, trip counts or branches, by operator.
OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(["ConstantOfShape", "If", "Loop"], (0,)),
    **dict.fromkeys(["Expand", "OneHot", "Pad", "ReduceMean", "ReduceSum", "Reshape", "SequenceAt"], (1,)),
    **dict.fromkeys(["Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze"], (1,)),
    "Range": (0, 1, 2),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
}
#: The passes of ``-O1``, and guarded groups with any gain.
PIPELINE = "inline-functions,unroll-loops,O1,guard-groups{cost=0}"


@dataclass(frozen=True)
class Found:
    """The operands of one specialized model.

    Attributes:
        model: its name.
        operands: their number.
        unknown: those that are no constants, as text, with their numbers.
    """

    model: str
    operands: int
    unknown: Mapping[str, int]


def count(name: str, model: ir.Model, feeds: Feeds) -> Found:
    """The operands of ``model``, specialized for a run with ``feeds``."""
    profile = graphopt.record_profile(model, [feeds])
    inputs = {name: value for name, value in profile.values.items() if name in feeds}
    special = specialize_inputs(model, Guard(inputs), profile)
    with context_for(special) as cx:
        make_pipeline(PIPELINE).run(special, cx)
        found = list(_operands(special))
        unknown = Counter(
            f"{node.op_type} of {ir.label(node)}"
            for node, value in found
            if ir.constant_of(value) is None and ir.all_ints(cx.known_ints(value)) is None
        )
    return Found(name, len(found), unknown)


def _operands(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value]]:
    for graph in ir.graphs_of(model):
        for node in graph:
            for index in OPERANDS.get(node.op_type, ()) if node.domain == "" else ():
                value = node.inputs[index] if index < len(node.inputs) else None
                if value is not None:
                    yield node, value


def table(results: list[Found]) -> str:
    """A line for each model with unknown operands, and the totals."""
    rows = [[one.model, one.operands, ", ".join(one.unknown)] for one in results if one.unknown]
    total, unknown = sum(one.operands for one in results), sum(sum(one.unknown.values()) for one in results)
    note = f"{len(results)} models, {total} operands, {unknown} unknown."
    return "\n".join([doc_tables.markdown_table(["model", "operands", "unknown"], rows), "", note])


def main() -> int:
    """Count the operands of all models, print the table, and insert it into documents."""
    options = measured_models.arguments(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = [
            count(case.name, ir.load(case.path), make_feeds(case.entry, 0))
            for case in measured_models.progress(measured_models.cases(options, Path(scratch)))
        ]
    doc_tables.publish(options, "unknown-integers", table(results), {"models": [*map(asdict, results)]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
