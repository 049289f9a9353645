"""What can be switched: groups of rewrites, and session options."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from graphopt import ir
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Record
from graphopt.rules import all_rules
from graphopt.runtime.devices import Device
from graphopt.runtime.session_choice import SessionChoice

#: The first opset with Attention, RMSNormalization and RotaryEmbedding.
_FUSED = 23
#: What a LayerNormalization may look like before it is fused.
_NORMALIZES = frozenset({"LayerNormalization", "SkipLayerNormalization", "ReduceMean"})


@dataclass(frozen=True)
class Group:
    """Rewrites that are switched together.

    Attributes:
        name: the family of rules, or the pass.
        owners: the rules (or the pass) that made them, most rewrites first.
        rewrites: how many these are.
        speed: they do nothing but make a model faster: they stay only if they do.
    """

    name: str
    owners: tuple[str, ...]
    rewrites: int
    speed: bool = False


@dataclass(frozen=True)
class Variant:
    """One way to make and run the model.

    Attributes:
        off: rules and passes that do not run.
        original: the model as it came.
        choice: the session options.
        opset: what the model is written for first; ``None``: what it is.
    """

    off: frozenset[str] = frozenset()
    original: bool = False
    choice: SessionChoice = field(default_factory=SessionChoice)
    opset: int | None = None

    def without(self, owners: Iterable[str]) -> Variant:
        """The same with more switched off."""
        return replace(self, off=self.off | frozenset(owners))


def groups_of(records: Iterable[Record], passes: Iterable[Pass]) -> list[Group]:
    """The groups of a run that changed something: first those for speed, then by number of rewrites.

    Passes that the user asked for by what they do, such as a conversion of the opset, are no group.

    Args:
        records: what each run of a pass did.
        passes: those of the pipeline.
    """
    rules = {rule.name: rule for rule in all_rules()}
    passes = list(passes)
    required = {pass_.name for pass_ in passes if pass_.required}
    for_speed = {pass_.name for pass_ in passes if pass_.for_speed}
    found: dict[tuple[str, bool], Counter[str]] = {}
    for record in records:
        if record.name in required:
            continue
        made = record.rewrites or ({record.name: sum(record.changes.values())} if record.changes else {})
        for owner, count in made.items():
            rule = rules.get(owner)
            key = (owner, owner in for_speed) if rule is None else (rule.family, rule.fuses)
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
    return sorted(groups, key=lambda group: (not group.speed, -group.rewrites, group.name))


def newer_opset(model: ir.Model, passes: Iterable[Pass], ceiling: int) -> int | None:
    """An opset worth trying because more can be fused in it, if the model is written for an older one.

    Args:
        model: as it came.
        passes: those of the pipeline: they must fuse, and leave the opset alone.
        ceiling: the newest opset that the runtime loads.
    """
    names = {pass_.name for pass_ in passes}
    worth = "fuse-builtin" in names and "convert-opset" not in names and ceiling >= _FUSED
    return _FUSED if worth and model.graph.opset_imports.get("", _FUSED) < _FUSED else None


def choices_for(model: ir.Model, device: Device, threads: int | None) -> Iterator[SessionChoice]:
    """Session options worth trying.

    Args:
        threads: what the user settled on; then no other number is tried.
    """
    if threads is None and device.kind == "cpu":
        cores = os.cpu_count() or 1
        yield from (SessionChoice(threads=number) for number in sorted({1, cores // 2}) if 0 < number < cores)
    if threads != 1:
        yield SessionChoice(spinning=False)
    if device.kind == "cpu":
        yield SessionChoice(arena=False)
        if any(node.op_type in _NORMALIZES for node in ir.walk_nodes(model.graph)):
            yield SessionChoice(disabled=("SkipLayerNormFusion",))
