"""The search space of tuning: groups of rewrites, a newer opset, and session options."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from graphopt import ir
from graphopt.context import Action, Context
from graphopt.ops import graphopt_operators
from graphopt.ort.devices import Device
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.base import CHOSEN_OPSET, FUSED_OPERATORS, NATIVE_GROUPS, Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.passes.pipeline import Pipeline
from graphopt.rewrite.rewrite_filter import RewriteSite
from graphopt.rules import all_rules
from graphopt.util.lazy_dataclass import dataclass

#: The first opset with Attention, RMSNormalization and RotaryEmbedding.
_FUSED = 23
#: Operators of a LayerNormalization before or after fusion.
_NORMALIZES = frozenset({"LayerNormalization", "SkipLayerNormalization", "ReduceMean"})


@dataclass(frozen=True)
class Group:
    """Rewrites that are switched together.

    Attributes:
        name: the family of rules, or the pass.
        owners: the rules (or the pass) that made them, most rewrites first; or single rewrites, as text of
            :class:`graphopt.rewrite.rewrite_filter.RewriteSite`.
        speed: whether their only purpose is speed: they are kept only if the model is faster with them.
        whole: whether its owners are not tried one by one.
        raced: whether its kernels won their races: it is kept unless the model seems faster without it.
        functions: names of the native functions of its calls.
    """

    name: str
    owners: tuple[str, ...]
    rewrites: int
    speed: bool = False
    whole: bool = False
    raced: bool = False
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One way to build and run the model.

    Attributes:
        off: disabled rules and passes, and single rewrites.
        opset: the opset to which the model is converted first; ``None`` for its own.
        weighed: whether predicted costs decide about rewrites, as without tuning.
    """

    off: frozenset[str] = frozenset()
    original: bool = False
    choice: SessionChoice = field(default_factory=SessionChoice)
    opset: int | None = None
    weighed: bool = False

    def without(self, owners: Iterable[str]) -> Variant:
        """A copy with ``owners`` also disabled."""
        return replace(self, off=self.off | frozenset(owners))


class KernelRecorder(PassInstrumentation):
    """Records the rewrites that create calls of native groups; each group is tried separately.

    Attributes:
        places: the rewrites that created calls in the last run, by name of the function.
        sites: the same by name of the call's first output.
    """

    def __init__(self) -> None:
        self.places: dict[str, dict[RewriteSite, None]] = {}
        self.sites: dict[str, RewriteSite] = {}
        self._run: Context | None = None

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Forget the records of an earlier run."""
        if cx is not self._run:
            self._run = cx
            self.places, self.sites = {}, {}

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        for node in made:
            if node.domain == graphopt_operators.NATIVE_DOMAIN:
                site = RewriteSite(action.owner, action.node)
                self.places.setdefault(node.op_type, {})[site] = None
                self.sites[node.outputs[0].name or ""] = site

    def groups(self) -> list[Group]:
        """One group for each function, whose calls are switched together."""
        return [
            Group(name, tuple(map(str, places)), len(places), speed=True, whole=True, functions=(name,))
            for name, places in self.places.items()
        ]


def rewrite_groups(
    records: Iterable[PassRecord], passes: Iterable[Pass], kernels: Sequence[Group] = ()
) -> list[Group]:
    """The groups of rewrites of a run: groups for speed first, then by number of rewrites.

    Passes that the user requested for their effect, such as an opset conversion, are not groups.

    Args:
        records: the effect of each run of a pass.
        kernels: groups of single rewrites, whose passes are not groups.
    """
    rules = {rule.name: rule for rule in all_rules()}
    passes = list(passes)
    single = {RewriteSite.parse(owner).owner for group in kernels for owner in group.owners}
    single |= {pass_.name for pass_ in passes if NATIVE_GROUPS in pass_.provides}
    required = {pass_.name for pass_ in passes if pass_.required}
    for_speed = {pass_.name for pass_ in passes if pass_.for_speed}
    found: dict[tuple[str, bool], Counter[str]] = {}
    for record in records:
        if record.name in required or record.name in single:
            continue
        made = record.rewrites or ({record.name: sum(record.changes.values())} if record.changes else {})
        for owner, count in made.items():
            rule = rules.get(owner)
            key = (owner, owner in for_speed) if rule is None else (rule.family, rule.is_fusion)
            found.setdefault(key, Counter())[owner] += count
    cleaning = {name for name, speed in found if not speed}
    groups = [
        Group(
            f"{name}, fused" if speed and name in cleaning else name,
            tuple(owner for owner, _ in counts.most_common()),
            counts.total(),
            speed,
        )
        for (name, speed), counts in found.items()
    ]
    return sorted([*groups, *kernels], key=lambda group: (not group.speed, -group.rewrites, group.name))


def newer_opset(model: ir.Model, pipeline: Pipeline, ceiling: int) -> int | None:
    """An opset in which more can be fused, if the model's opset is older.

    Args:
        model: the original.
        pipeline: the passes, which must fuse operators and not convert the opset.
        ceiling: the newest opset that the runtime loads.
    """
    fuses = pipeline.provides(FUSED_OPERATORS) and not pipeline.provides(CHOSEN_OPSET)
    worth = fuses and ceiling >= _FUSED
    return _FUSED if worth and model.graph.opset_imports.get("", _FUSED) < _FUSED else None


def choices_for(model: ir.Model, device: Device, threads: int | None) -> Iterator[SessionChoice]:
    """Session options to try.

    Args:
        threads: the user's number of threads; if given, no other number is tried.
    """
    if threads is None and device.capabilities.is_host:
        cores = os.cpu_count() or 1
        yield from (SessionChoice(threads=number) for number in sorted({1, cores // 2}) if 0 < number < cores)
    if threads != 1:
        yield SessionChoice(spinning=False)
    if device.capabilities.is_host:
        yield SessionChoice(arena=False)
        if any(node.op_type in _NORMALIZES for node in ir.walk_nodes(model.graph)):
            yield SessionChoice(disabled=("SkipLayerNormFusion",))
