"""Limits and permissions of passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from graphopt.numerics import Numerics
from graphopt.ort.devices import CPU, Device
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.cost import Costs
    from graphopt.rewrite.rule import Rule


@dataclass(frozen=True)
class Options:
    """Limits and permissions of passes in any pipeline.

    Attributes:
        numerics: the least exact class of permitted rewrites.
        fold_limit: maximum size of a folded constant, in bytes; a constant that frees as many bytes may be
        larger.
        time_limit: seconds for folding and shape facts together; ``None`` for no limit.
        memory_limit: bytes of memory for folding; ``None`` for no limit.
        dim_ranges: minimum and maximum size of dynamic dims, as the user asserts; ``None`` for no maximum.
        skip: names of passes and rules that must not run.
        only: if given, the only rules that run.
        refused: pairs of a rule and the name of a node at which the rule must not be tried; an empty name for
            all nodes.
        withheld: rewrites that were tried and then left out: the rule, the name of the node (empty for all
            nodes), and the reason, for explanations of missing fusions.
        share_buffers: pairs of names: an input, and the output that the caller writes over it.
        portable: use only operators of the ONNX standard.
        strict_fusion: for each scope, the names of its nodes in the original model, except names that begin
            with the scope. The nodes of each scope must become one fused operator.
        device: the device for the result.
        costs: the costs of fused operators on the device; ``None`` for the figures that graphopt provides.
        kernels: turn unfused nodes into native kernels where that is faster.
        weights: names of initializers whose contents may change later: rewrites may compute with the
            contents, but must not depend on them.
        rules: the caller's rewrite rules, which run together with graphopt's.
        own: names of the caller's passes and rules, whose exceptions are raised unchanged.
    """

    numerics: Numerics = Numerics.REASSOCIATES
    fold_limit: int = 64 * 1024
    time_limit: float | None = None
    memory_limit: int | None = None
    dim_ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    refused: frozenset[tuple[str, str]] = frozenset()
    withheld: tuple[tuple[str, str, str], ...] = ()
    share_buffers: tuple[tuple[str, str], ...] = ()
    portable: bool = False
    strict_fusion: Mapping[str, frozenset[str]] = field(default_factory=dict)
    device: Device = CPU
    costs: Costs | None = None
    kernels: bool = False
    weights: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    own: frozenset[str] = frozenset()

    def permits(self, rule: str) -> bool:
        """Whether ``skip`` and ``only`` permit the rule of this name."""
        return rule not in self.skip and (self.only is None or rule in self.only)
