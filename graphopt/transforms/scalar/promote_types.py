"""promote-types: wider operand types for nodes without a kernel for their type."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class PromoteTypes(Pass):
    """Promote integers and booleans to a wider type where the device has no kernel for their type.

    ``Clip(int32) → Cast(Clip(Cast(int64)))``. Without it, a CUDA session runs the node on the CPU, and copies
    its operands to the host and its result back. The pass promotes nodes that only move, select or compare
    elements, so that the results are bit-identical. A promoted group of nodes is adjacent to nodes on the
    device, and none of its operands or readers is on the CPU, so that the number of copies decreases. On the
    CPU, the pass does nothing. It is not ``for_speed``, so that pipelines without other device-dependent
    passes don't detect devices.

    LLVM's type legalization promotes integers in the same way.
    """

    name: ClassVar[str] = "promote-types"
    does: ClassVar[str] = "promoted"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Promote the operands of nodes in each graph."""
        if cx.target.device.capabilities.is_host:
            return
        # imported here, because placement is not needed on the CPU
        from graphopt.transforms.scalar._type_promotions import profitable_promotions, promote

        for graph in cx.graphs:
            for node, promotion in profitable_promotions(graph, cx).items():
                action = cx.begin_rewrite(self.name, node)
                if action is not None:
                    cx.end_rewrite(action, node, promote(node, promotion, cx))
