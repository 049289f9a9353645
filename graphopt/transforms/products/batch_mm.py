"""batch-mm: several products become one wider product."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.transforms.products import _product_sums as sums
from graphopt.transforms.products import _side_products as sides


@dataclass(frozen=True)
class BatchMM(Pass):
    """Compute MatMuls, Gemms or Convs of one input as one and a Split, and sums of MatMuls as one MatMul.

    Only where the table of costs says that it pays (docs/cost.md), which by the shipped figures is nowhere
    on CPUs: onnxruntime's products of single matrices are fast, and the Split copies. Their other
    operands must be constants that nothing else reads, and are joined once and for all; biases are joined
    too. Sums may be evaluated in another order, so nothing is done with ``--exact``. Quantized products
    stay as they are.

    Attributes:
        always: also where it does not pay.
        limit: bytes of weights that are joined at most, because the new ones are held in memory.
    """

    name: ClassVar[str] = "batch-mm"
    for_speed: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = ("onnxoptimizer:fuse_qkv",)
    always: bool = False
    limit: int = 1 << 28

    def run(self, model: ir.Model, cx: Context) -> None:
        """Join sums first, then what shares an input, in each graph."""
        if cx.options.numerics is Numerics.EXACT:
            return
        for graph in list(ir.graphs_of(model)):
            for found in sums.sums_of(graph, cx):
                if self._pays("sum", found.products, cx):
                    sums.join(found, cx, self.name)
            groups: dict[tuple[ir.Value, Hashable], list[sides.Member]] = {}
            for node in graph:
                for member in sides.members_of(node, cx):
                    groups.setdefault((member.shared, member.key), []).append(member)
            for members in groups.values():
                case = "convolutions" if members[0].node.op_type == "Conv" else "shared input"
                if self._pays(case, members, cx):
                    sides.join(members, cx, self.name)

    def eager(self) -> BatchMM:
        """The same also where it does not pay."""
        return replace(self, always=True)

    def _pays(self, case: str, members: Sequence[sides.Member], cx: Context) -> bool:
        if len(members) < 2:
            return False
        tensors = [tensor for member in members if (tensor := ir.constant_of(member.weight)) is not None]
        if sum(tensor.nbytes for tensor in tensors) > self.limit:
            cx.say(self.name, lambda: f"{members[0].weight.name} and others of its kind take too many bytes")
            return False
        if self.always:
            return True
        elements = sum(math.prod(tensor.shape.numpy()) for tensor in tensors) / len(tensors)
        width, rows = round(math.sqrt(elements)), sides.rows_of(members[0], cx)
        sizes: dict[str, Any] = {"width": width, "rows": rows}
        if case == "convolutions":
            sizes = {"channels": width, "pixels": math.isqrt(rows) if isinstance(rows, int) else rows}
        at = [member.output for member in members]
        decision = cx.weigh(self.name, by=self.name, at=at, case=case, count=len(members), **sizes)
        cx.say(self.name, lambda: f"{members[0].output.name}: {decision.reason}")
        return bool(decision) and decision.ratio is not None
