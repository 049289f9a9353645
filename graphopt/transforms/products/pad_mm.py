"""pad-mm: dims of matrix products, padded to multiples for tensor cores."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.cost.padded_products import PaddingDecision, decide, required_padding
from graphopt.diagnostics import record
from graphopt.diagnostics.hint import Hint
from graphopt.numerics import Numerics
from graphopt.ort.devices import TENSOR_CORES, MatrixUnits
from graphopt.ort.gpu_properties import gpu_properties, matrix_units
from graphopt.passes.base import Pass
from graphopt.transforms.products._padded_product import NotPaddable, PaddableProduct
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class PadMM(Pass):
    """Pad matrix products with zeros, so that the rows of matrices suit the device's tensor cores.

    Rows become multiples of 8 elements for float16 and bfloat16, 4 for float32 (TF32), and 16 for 8-bit
    integers: ``x @ W → Slice(Pad(x) @ W')``, for MatMul, Gemm, FusedMatMul and MatMulInteger, also in
    batches. Constants are padded ahead of time; a constant grows by at most an eighth, or by
    ``--fold-limit``.

    A product is padded if an estimate from its operations, its bytes, and the bytes moved by Pad and Slice
    predicts a gain on the device, so all sizes have to be known. On devices without such units, such as CPUs,
    the pass does nothing. Sums may be evaluated in another order, so it does nothing with ``--exact``.

    Attributes:
        always: pad every product for tensor cores, on any device, without an estimate.
    """

    name: ClassVar[str] = "pad-mm"
    does: ClassVar[str] = "padded"
    for_speed: ClassVar[bool] = True
    always: bool = False

    def run(self, model: ir.Model, cx: Context) -> None:
        """Pad the products of each graph, those of bodies first."""
        device = cx.target.device
        gpu = gpu_properties(device)
        units = matrix_units(device, gpu)
        if cx.options.numerics is Numerics.EXACT:
            return
        if units is None and not self.always:
            message = f"pad-mm skipped: the {gpu or device} has no tensor cores"
            record.hint(Hint("no-tensor-cores", message, "--device cuda targets GPUs that have them"))
            return
        padded = Counter[str]()
        for graph in reversed(cx.graphs):
            for node in list(graph):
                try:
                    if self._pad(node, units or TENSOR_CORES, cx):
                        padded[node.op_type] += 1
                except NotPaddable as reason:
                    cx.refuse(Refusal(self.name, ir.label(node), str(reason)))
        if padded:
            total = counted(sum(padded.values()), "product")
            cx.remarks.append(f"pad-mm: {total} padded for tensor cores")

    def _pad(self, node: ir.Node, units: MatrixUnits, cx: Context) -> bool:
        """Pad ``node`` if it is a product and that is profitable; returns whether it was padded."""
        found = PaddableProduct.of(node, cx)
        if found is None:
            return False
        decision = self._decide(found, units)
        label = ir.label(node)
        cx.say(self.name, lambda: f"{label}: {decision.reason}")
        if not decision:
            output = node.outputs[0].name
            cx.refuse(Refusal(self.name, label, decision.reason, output, decision.hint))
            return False
        found.check(decision.padding, cx)
        return found.write(decision.padding, cx, self.name)

    def _decide(self, found: PaddableProduct, units: MatrixUnits) -> PaddingDecision:
        decision = decide(found.product, units)
        multiple = units.multiples.get(found.product.dtype)
        if not self.always or multiple is None:
            return decision
        padding = required_padding(found.product, multiple)
        if padding is None:
            raise NotPaddable("the number of rows is unknown")
        return PaddingDecision(padding, decision.reason)
