"""The kind of groups that become kernels, for ``graphopt partition``."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.kernel_policy import MEMBER_REASON, FusionPolicy, Shapes
from graphopt.fusion.lower_partition import kernel_inputs
from graphopt.fusion.propose_kernels import propose_kernels
from graphopt.ops import graphopt_operators
from graphopt.partitioning.propose_groups import Partition, Proposal
from graphopt.transforms.fusion.dissolve_groups import dissolve
from graphopt.transforms.fusion.fuse_groups import FuseGroups
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class FusionGroups:
    """Groups that run as one kernel; a :class:`graphopt.partitioning.group_kind.GroupKind`.

    Attributes:
        minimum: minimum size of a group; equal computations count once.
        shapes: shapes of values in groups.
    """

    minimum: int = 2
    shapes: Shapes = Shapes.ANY

    name: ClassVar[str] = "fusion"
    domain: ClassVar[str] = graphopt_operators.NATIVE_DOMAIN

    @property
    def outlining_pass(self) -> FuseGroups:
        """The pass that outlines the groups."""
        return FuseGroups(self.minimum, self.shapes)

    def find(self, model: ir.Model, cx: Context) -> NativeGrouping:
        """Propose groups of ``model``, after dissolving existing ones."""
        dissolve(model, cx)
        return NativeGrouping(FusionPolicy(cx, self.minimum, self.shapes), model)

    def obstacles(self, model: ir.Model) -> dict[str, str]:
        """None: kernels are optional."""
        return {}

    def raise_version(self, model: ir.Model, cx: Context) -> None:
        """No change: the pass raises the version if there are groups."""


@dataclass(frozen=True)
class NativeGrouping:
    """The groups of one model; a :class:`graphopt.partitioning.group_kind.Grouping`."""

    policy: FusionPolicy
    model: ir.Model

    default_reason: ClassVar[str] = MEMBER_REASON

    @cached_property
    def proposals(self) -> list[Proposal]:
        """The groups, and reasons for all other nodes."""
        return propose_kernels(self.model.graph, self.policy)

    def inputs(self, group: Partition) -> list[ir.Value]:
        """The inputs of the kernel."""
        return kernel_inputs(group)

    def requires_grad(self, value: ir.Value) -> None:
        """Unknown: gradients are irrelevant for kernels."""
        return None

    def saved_bytes(self, group: Partition) -> Dim | None:
        """Memory traffic that the kernel saves, in bytes."""
        return self.policy.saved_bytes(group.nodes, self.inputs(group), group.outputs)
