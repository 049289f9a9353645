"""Groups that run as one kernel, as they are shown and written by ``graphopt partition``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.policy import FusionPolicy, Shapes
from graphopt.fusion.propose import kernel_inputs, propose_kernels
from graphopt.ops import dialects
from graphopt.partitioning.propose import Partition, Proposal
from graphopt.transforms.fusion.dissolve_groups import dissolve
from graphopt.transforms.fusion.fuse_groups import FuseGroups


@dataclass(frozen=True)
class FusionGroups:
    """Groups that run as one kernel; a :class:`graphopt.partitioning.group_kind.GroupKind`.

    Attributes:
        minimum: nodes of a group; each computation counts once.
        shapes: of which shapes groups are made.
    """

    minimum: int = 2
    shapes: Shapes = Shapes.ANY

    name: ClassVar[str] = "fusion"
    domain: ClassVar[str] = dialects.NATIVE_DOMAIN

    @property
    def outlining_pass(self) -> FuseGroups:
        """The pass that makes functions of them."""
        return FuseGroups(self.minimum, self.shapes)

    def find(self, model: ir.Model, cx: Context) -> Found:
        """The groups of ``model``; those that it has already are taken apart."""
        dissolve(model, cx)
        return Found(FusionPolicy(cx, self.minimum, self.shapes), model)

    def raise_version(self, model: ir.Model, cx: Context) -> None:
        """The pass does so itself, where there are groups."""


@dataclass(frozen=True)
class Found:
    """The groups of one model; a :class:`graphopt.partitioning.group_kind.Grouping`."""

    policy: FusionPolicy
    model: ir.Model

    default_reason: ClassVar[str] = "it is computed in the same loops"

    @cached_property
    def proposals(self) -> list[Proposal]:
        """The groups, and why other nodes are in none."""
        return propose_kernels(self.model.graph, self.policy)

    def inputs(self, group: Partition) -> list[ir.Value]:
        """What the kernel reads."""
        return kernel_inputs(group)

    def requires_grad(self, value: ir.Value) -> None:
        """Nobody asks for gradients."""
        return None

    def saved(self, group: Partition) -> Dim | None:
        """What the nodes read and write one by one, less what the kernel does."""
        return self.policy.saved(group.nodes, self.inputs(group), group.outputs)
