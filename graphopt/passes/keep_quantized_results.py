"""Keep the results of default sessions of onnxruntime for quantized values after each pass."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite import ort_qdq_miscompilation
from graphopt.rewrite.worklist import apply_rules
from graphopt.rules import admitted_rules
from graphopt.util.lazy_dataclass import dataclass

_BY = "separate-quantized-pairs"


@dataclass(frozen=True)
class QuantizedPairs:
    """The pairs of QuantizeLinear and DequantizeLinear that onnxruntime merges in the original.

    A pass that removes, moves or inlines nodes may leave further pairs without a reader between them, so that
    onnxruntime would also merge them, or miscompile an operator next to them. :meth:`protect` runs after each
    pass, and preserves the results of default sessions.

    Attributes:
        joined: the inner two nodes of each two adjacent pairs that are merged in the original.
    """

    joined: frozenset[ir.Node]

    @classmethod
    def of(cls, cx: Context) -> QuantizedPairs | None:
        """The pairs of the model; ``None`` if it has no quantizers."""
        if not ort_qdq_miscompilation.has_quantizers(cx):
            return None
        return cls(frozenset(node for pair in _merged_pairs(cx) for node in pair))

    def protect(self, model: ir.Model, cx: Context) -> None:
        """Apply the workaround rules, and insert a Clip without bounds between pairs that would be merged.

        onnxruntime removes this Clip, but only after merging pairs.
        """
        if any(ort_qdq_miscompilation.is_miscompiled(cx, node) for graph in cx.graphs for node in graph):
            apply_rules([rule for rule in admitted_rules(cx.options) if rule.workaround], model, cx)
        for dequantize, quantize in list(_merged_pairs(cx)):
            if dequantize in self.joined or quantize in self.joined:
                continue
            cx.forget_reads()
            # records reads of the parameters that the Clip depends on
            ort_qdq_miscompilation.merges_pairs(cx, dequantize)
            clip = cx.edit.make_node("Clip", [dequantize.outputs[0]], name=f"{ir.label(quantize)}_clip")
            cx.edit.insert_before(quantize, [clip])
            cx.edit.set_input(quantize, 0, clip.outputs[0])
            cx.edit.note_origin([clip], [quantize], _BY)
            cx.commit_reads()
        cx.forget_reads()


def _merged_pairs(cx: Context) -> Iterator[tuple[ir.Node, ir.Node]]:
    """The DequantizeLinear and QuantizeLinear between each two pairs that onnxruntime merges."""
    for graph in cx.graphs:
        for node in graph:
            # few quantized values are quantized again, so the search starts at a QuantizeLinear to visit
            # fewer nodes
            dequantize = ort_qdq_miscompilation.dequantized_before(node)
            if dequantize is not None and ort_qdq_miscompilation.merges_pairs(cx, dequantize) is node:
                yield dequantize, node
