"""batch-mm: horizontal fusion of matrix products."""

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
from graphopt.transforms.products import _shared_input_products as sides


@dataclass(frozen=True)
class BatchMM(Pass):
    """Merge MatMuls, Gemms or Convs that share an input into one and a Split; merge sums of MatMuls into one.

    Products are merged only if the table of costs predicts a gain (docs/cost.md). The figures shipped for
    CPUs predict none, because onnxruntime multiplies single matrices fast and the Split copies. The other
    operands must be constants without other readers; they and the biases are concatenated ahead of time. Sums
    may be evaluated in another order, so the pass does nothing with ``--exact``. Quantized products are not
    merged.

    Attributes:
        always: ignore the table of costs.
        limit: the most bytes of concatenated weights, which are kept in memory.
    """

    name: ClassVar[str] = "batch-mm"
    for_speed: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = ("onnxoptimizer:fuse_qkv",)
    always: bool = False
    limit: int = 1 << 28

    def run(self, model: ir.Model, cx: Context) -> None:
        """In each graph, merge sums of products first, then products that share an input."""
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
        """The same pass, ignoring costs."""
        return replace(self, always=True)

    def _pays(self, case: str, members: Sequence[sides.Member], cx: Context) -> bool:
        if len(members) < 2:
            return False
        tensors = [tensor for member in members if (tensor := ir.constant_of(member.weight)) is not None]
        if sum(tensor.nbytes for tensor in tensors) > self.limit:
            cx.say(
                self.name,
                lambda: f"{members[0].weight.name} and the weights merged with it exceed the limit of bytes",
            )
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
