"""merge-functions: deduplication of functions."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class MergeFunctions(Pass):
    """Deduplicate functions with equal bodies, attributes and opsets: all calls refer to the first of them.

    Only functions of one domain are merged, so that no caller needs a further import. Functions that
    onnxruntime may confuse with one of its own operators are not merged. Functions without remaining calls
    are removed.
    """

    name: ClassVar[str] = "merge-functions"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Redirect calls and remove unused functions, until no two functions are equal."""
        while len(model.functions) > 1 and not ir.has_training_info(model):
            instead = self._duplicates(model)
            merged = instead and self._redirect(model, instead, cx)
            if not merged:
                return
            called = {node.op_identifier() for graph in ir.graphs_of(model) for node in graph}
            for key in instead:
                if key not in called:
                    cx.edit.remove_function(model.functions[key])

    @staticmethod
    def _duplicates(model: ir.Model) -> dict[_Key, _Key]:
        """For each duplicate function, the first function that equals it."""
        first: dict[tuple[str, str], _Key] = {}
        instead: dict[_Key, _Key] = {}
        for key, digest in ir.function_fingerprints(model).items():
            if key[0] in ir.RUNTIME_DOMAINS or key[0] == graphopt_operators.NATIVE_DOMAIN:
                continue  # the name of a native group is a digest of its types, too
            kept = first.setdefault((key[0], digest), key)
            if kept != key:
                instead[key] = kept
        return instead

    def _redirect(self, model: ir.Model, instead: dict[_Key, _Key], cx: Context) -> bool:
        merged = False
        for graph in ir.graphs_of(model):
            for node in graph:
                kept = instead.get(node.op_identifier())
                if kept is None or (action := cx.begin_rewrite(self.name, node)) is None:
                    continue
                cx.edit.redirect(node, model.functions[kept])
                cx.end_rewrite(action, node, [])
                merged = True
        for function in model.functions.values() if merged else ():
            cx.facts.invalidate(function.graph)  # functions that it calls have other callers now
        return merged
