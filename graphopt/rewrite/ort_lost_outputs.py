"""Outputs that default sessions of onnxruntime remove by mistake, so that the model fails to load."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite.proposed_rewrite import ProposedRewrite


def loses_output(cx: Context, rewrite: ProposedRewrite) -> bool:
    """Whether onnxruntime would remove a node of the result that computes an output of the model."""
    return any(_is_lost(old, new) for old, new in rewrite.replacements().items())


def _is_lost(old: ir.Value, new: ir.Value) -> bool:
    """Whether onnxruntime would remove the node of ``new`` if ``new`` replaced ``old``.

    GemmTransposeFusion of onnxruntime 1.31 keeps a Transpose whose result is a graph output. But if it folds
    the Transpose of the other matrix of a Gemm, it removes both, unless they have other readers.
    """
    returned = old.is_graph_output() or new.is_graph_output()
    if not returned or not _is(new.producer(), "Transpose"):
        return False
    before = [reader for reader in ir.readers(new) if reader is not old.producer()]
    if new.is_graph_output() and _only_folded(before, new):
        return False  # onnxruntime removes it without the rewrite, too
    return _only_folded([*before, *ir.readers(old)], old, new)


def _only_folded(readers: list[ir.Node], *values: ir.Value) -> bool:
    """Whether only Gemms read ``values``, and one of them multiplies by another Transpose."""
    return all(_is(reader, "Gemm") for reader in readers) and any(
        value is not None and value not in values and _is(value.producer(), "Transpose")
        for reader in readers
        for value in reader.inputs[:2]
    )


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and node.domain == "" and node.op_type == op_type
