"""split-slices: Slices that partition an axis become one Split."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.match import Match
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rules.building_blocks.quantizers import is_quantizer
from graphopt.rules.building_blocks.slices_and_pads import slice_ranges
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class SplitSlices(Pass):
    """Replace Slices that partition an axis by one Split.

    Exporters write ``x[:, :half]`` and ``x[:, half:]`` for ``chunk`` and ``split``. The sizes must be known;
    the Slices select every index, so the Split copies no more than they do.
    """

    name: ClassVar[str] = "split-slices"
    proven_exact: ClassVar[bool] = True
    operators: ClassVar[frozenset[str]] = frozenset({"Slice"})
    tags: ClassVar[tuple[str, ...]] = ("onnxscript:slice-split", "onnxruntime:GatherSliceToSplitFusion")

    def run(self, model: ir.Model, cx: Context) -> None:
        """Process the Slices of each graph, grouped by their data and axis."""
        for graph in cx.graphs:
            groups: dict[tuple[ir.Value, int], dict[ir.Node, range]] = {}
            for node in graph:
                if node.op_type == "Slice" and node.domain == "":
                    cut = _slice_of(node, cx)
                    if cut is not None:
                        data, axis, taken = cut
                        groups.setdefault((data, axis), {})[node] = taken
            for (data, axis), pieces in groups.items():
                self._split(data, axis, pieces, cx)

    def _split(self, data: ir.Value, axis: int, pieces: dict[ir.Node, range], cx: Context) -> None:
        parts = sorted({(taken.start, taken.stop) for taken in pieces.values()})
        shape = cx.shape(data)
        assert shape is not None
        tiles = all(a[1] == b[0] for a, b in pairwise(parts))
        if len(parts) < 2 or not tiles or parts[0][0] != 0 or parts[-1][1] != shape[axis]:
            return
        if _parts_may_run_on_integers(data, pieces):
            cx.say(
                self.name, lambda: f"{data.name} is dequantized: onnxruntime fuses through Slice, not Split"
            )
            return
        first = next(iter(pieces))
        action = cx.begin_rewrite(self.name, first)
        if action is None:
            return
        builder = Builder(cx, first)
        sizes = [end - start for start, end in parts]
        if cx.version(first) >= 13:
            outputs = builder.Split(data, np.array(sizes, np.int64), outputs=len(parts), axis=axis)
        else:
            outputs = builder.Split(data, outputs=len(parts), axis=axis, split=sizes)
        made = builder.commit()
        cx.edit.note_origin(made, list(pieces), self.name)
        for node, taken in pieces.items():
            cx.edit.replace(node.outputs[0], outputs[parts.index((taken.start, taken.stop))])
            cx.edit.remove(node)
        cx.end_rewrite(action, first, made)


def _parts_may_run_on_integers(data: ir.Value, pieces: Iterable[ir.Node]) -> bool:
    """Whether ``data`` is dequantized and onnxruntime may run readers of its slices on integers.

    onnxruntime moves the DequantizeLinear after a Slice, but not after a Split.
    """
    return is_quantizer(data.producer(), "DequantizeLinear") and not all(
        is_quantizer(user, "QuantizeLinear") for node in pieces for user in ir.readers(node.outputs[0])
    )


def _slice_of(node: ir.Node, cx: Context) -> tuple[ir.Value, int, range] | None:
    """The data of the Slice ``node``, its only axis, and the selected indices; ``None`` if unknown."""
    match = Match(SplitSlices.name, node, {}, cx)
    data, ranges = node.inputs[0], slice_ranges(match, node)
    shape = None if data is None else cx.shape(data)
    if data is None or shape is None or ranges is None or len(ranges) != 1:
        return None
    size = shape[ranges[0].axis]
    if ranges[0].step != 1 or not isinstance(size, int):
        return None
    taken = ranges[0].of(size)
    return (data, ranges[0].axis, taken) if len(taken) else None
