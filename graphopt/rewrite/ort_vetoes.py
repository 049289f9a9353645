"""Refuse rewrites after which default sessions of onnxruntime fail or change results.

The rewrite engine and the pass ``cse`` consult the same list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphopt.context import Context
from graphopt.rewrite.ort_lost_outputs import loses_output
from graphopt.rewrite.ort_qdq_miscompilation import QUANTIZERS, would_miscompile
from graphopt.rewrite.ort_qdq_products import would_fail
from graphopt.rewrite.proposed_rewrite import ProposedRewrite


class Veto(NamedTuple):
    """The refusal of rewrites that would cause one fault of onnxruntime.

    Attributes:
        reason: the reason of the refusal.
        forbids: whether the fault would occur after a rewrite, but does not occur before it.
        operators: the fault requires a model with one of these operators; empty for any model.
    """

    reason: str
    forbids: Callable[[Context, ProposedRewrite], bool]
    operators: frozenset[str] = frozenset()


#: All vetoes. Rewrites must not add ``operators`` to a model without them.
VETOES = (
    Veto("onnxruntime would miscompile the quantized values around it", would_miscompile, QUANTIZERS),
    Veto("onnxruntime could not run a product of the dequantized values", would_fail, QUANTIZERS),
    Veto("onnxruntime would fold the Transpose into Gemm and lose an output of the model", loses_output),
)


class OrtVetoes:
    """The vetoes that apply to the model of ``cx``, selected once per pass."""

    def __init__(self, cx: Context) -> None:
        self._cx = cx
        present = cx.edit.inventory.operators
        self._vetoes = [
            veto for veto in VETOES if not veto.operators or not veto.operators.isdisjoint(present)
        ]

    def reason_against(self, rewrite: ProposedRewrite) -> str | None:
        """The reason to refuse ``rewrite``, if there is one."""
        return next((veto.reason for veto in self._vetoes if veto.forbids(self._cx, rewrite)), None)
