"""batch-mm: horizontal fusion of matrix products."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.transforms.products import _computed_products as computed
from graphopt.transforms.products import _product_sums as sums
from graphopt.transforms.products import _shared_input_products as sides
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class BatchMM(Pass):
    """Merge MatMuls, Gemms or Convs of one input into one and a Split; merge sums of MatMuls into one MatMul.

    Products are merged only if the table of costs predicts a gain (docs/cost.md). If the other operands are
    constants without other readers, they and the biases are concatenated ahead of time. The figures shipped
    for CPUs predict no gain for such products, because onnxruntime multiplies single matrices fast and the
    Split copies.

    If the other operands of MatMuls are computed, they are concatenated at run time:
    ``a @ W, b @ W → Split([a; b] @ W)``, ``x @ a, x @ b → Split(x @ [a b])``, and
    ``a @ U + b @ V → [a b] @ [U; V]``. No operand may depend on a product of the same group; the sizes of the
    Split must be known. On CPUs, this is profitable for rows that are multiplied by one matrix, as in
    unrolled recurrent networks, and for long sums of small products, as in their gradients.

    Sums may be evaluated in another order, so the pass does nothing with ``--exact``. Quantized products are
    not merged.

    Modelled on ``BatchMM`` of PyTorch's JIT.

    Attributes:
        always: ignore the table of costs.
        limit: maximum size of concatenated operands, in bytes.
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
        for graph in cx.graphs:
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
            for group in computed.sums_in(graph, cx):
                if self._pays_computed(group, cx):
                    computed.merge_sum(group, cx, self.name)
            shared = [group for group in computed.groups_in(graph, cx) if self._pays_computed(group, cx)]
            computed.merge_shared(shared, graph, cx, self.name)

    def eager(self) -> BatchMM:
        """The same pass, ignoring costs."""
        return replace(self, always=True)

    def _pays(self, case: str, members: Sequence[sides.Member], cx: Context) -> bool:
        if len(members) < 2:
            return False
        tensors = [tensor for member in members if (tensor := ir.computable(member.weight)) is not None]
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
        return self._is_profitable(case, [member.output for member in members], sizes, cx)

    def _pays_computed(self, group: computed.Group, cx: Context) -> bool:
        first = group.nodes[0].outputs[0]
        sizes = [cx.facts.nbytes(value) for value in group.operands]
        if sum(size for size in sizes if isinstance(size, int)) > self.limit:
            cx.say(self.name, lambda: f"the operands merged with those of {first.name} exceed the limit")
            return False
        if self.always:
            return True
        if group.is_batched:
            cx.say(self.name, lambda: f"{first.name}: no figures for batches of matrices")
            return False
        at = [node.outputs[0] for node in group.nodes]
        return self._is_profitable(group.case, at, {"width": group.width, "rows": group.rows}, cx)

    def _is_profitable(self, case: str, at: Sequence[ir.Value], sizes: dict[str, Any], cx: Context) -> bool:
        """Whether the table of costs predicts a gain for merging the products ``at``."""
        decision = cx.weigh(self.name, by=self.name, at=at, case=case, count=len(at), **sizes)
        cx.say(self.name, lambda: f"{at[0].name}: {decision.reason}")
        return bool(decision) and decision.ratio is not None
