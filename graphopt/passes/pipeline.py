"""Pipelines: passes in order, written as text.

An example is ``dce,cse,fixpoint(peephole,constant-propagation{limit=64KiB}),dce``: names separated by commas,
with options in braces. ``fixpoint(...)`` repeats its passes until none changes the model;
``if-gradient(...,otherwise,...)`` runs one of two paths. The name of a
pipeline denotes its passes, and ``package.module:Class`` a pass of another package. ``pre-passes`` and
``post-passes`` are placeholders for passes of the caller. ``str()`` prints text that parses back to an
equal pipeline, but passes of other packages appear by name; :func:`pipeline_text` prints their import paths.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.context import Action, Context, Observer
from graphopt.diagnostics import record as diagnostics
from graphopt.diagnostics import tracer
from graphopt.errors import (
    PassFailed,
    ResourceLimit,
    UnsupportedModel,
    UsageError,
    VerificationFailed,
    blame,
)
from graphopt.passes.base import Pass
from graphopt.passes.changed_neighborhood import Snapshot
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.keep_quantized_results import QuantizedPairs
from graphopt.passes.load_pass import load_pass
from graphopt.passes.pass_records import History, PassRecord
from graphopt.passes.pipeline_steps import OTHERWISE, SLOTS, Fixpoint, IfGradient, Slot, Step
from graphopt.passes.pipeline_syntax import Item, parse_items
from graphopt.passes.registry import Registry
from graphopt.passes.unknown_names import unknown_step
from graphopt.profile.annotations import value_requiring_gradient
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Maximum number of rewrites in one run of a pass: a constant plus a number per node; more rewrites count as
#: non-termination.
_ACTIONS, _ACTIONS_PER_NODE = 1000, 50
#: Maximum number of rules named per pass in a remark about a ``fixpoint`` that reached its limit.
_RULES = 3


@dataclass(frozen=True)
class Pipeline:
    """Passes in order."""

    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str, registry: Registry) -> Pipeline:
        """The pipeline that ``text`` describes.

        Raises:
            UsageError: a pass or option is unknown (the nearest is named), or the text is malformed.
        """
        return cls(tuple(_steps(parse_items(text), registry, ())))

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))

    def passes(self) -> Iterator[Pass]:
        """Every pass, those inside ``fixpoint`` once."""
        return (step for step in _all_steps(self.steps) if isinstance(step, Pass))

    def provides(self, *features: str, skip: Collection[str] = ()) -> bool:
        """Whether a pass provides one of ``features``, other than the passes named in ``skip``."""
        return any(step.name not in skip and not step.provides.isdisjoint(features) for step in self.passes())

    def filled(self, before: Sequence[Step], after: Sequence[Step]) -> Pipeline:
        """The same pipeline with placeholders filled; if it has none, the steps are added at its ends."""
        given = {"pre-passes": before, "post-passes": after}
        slots = [step.name for step in _all_steps(self.steps) if isinstance(step, Slot)]
        first = () if "pre-passes" in slots else before
        last = () if "post-passes" in slots else after
        return Pipeline((*first, *_fill_slots(self.steps, given), *last))

    def eager(self) -> Pipeline:
        """The same pipeline, with predicted costs ignored."""
        return Pipeline(_eager(self.steps))

    def run(self, model: ir.Model, cx: Context, instruments: Sequence[PassInstrumentation] = ()) -> History:
        """Run every pass over ``model`` in place."""
        run = _Run(model, cx, instruments, History(str(self)))
        run.steps(self.steps)
        return run.history


def _all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """All ``steps``, with each ``fixpoint`` replaced by its steps, and each ``if-gradient`` by both paths."""
    pending = list(reversed(steps))
    while pending:
        step = pending.pop()
        if isinstance(step, Fixpoint):
            pending.extend(reversed(step.steps))
        elif isinstance(step, IfGradient):
            pending.extend(reversed((*step.then, *step.otherwise)))
        else:
            yield step


def _fill_slots(steps: Iterable[Step], given: Mapping[str, Sequence[Step]]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Slot):
            yield from given[step.name]
        elif isinstance(step, Fixpoint):
            yield replace(step, steps=tuple(_fill_slots(step.steps, given)))
        elif isinstance(step, IfGradient):
            yield IfGradient(tuple(_fill_slots(step.then, given)), tuple(_fill_slots(step.otherwise, given)))
        else:
            yield step


def _eager(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(
        replace(step, steps=_eager(step.steps))
        if isinstance(step, Fixpoint)
        else IfGradient(_eager(step.then), _eager(step.otherwise))
        if isinstance(step, IfGradient)
        else step.eager()
        if isinstance(step, Pass)
        else step
        for step in steps
    )


class _Run:
    """One run of a pipeline over a model."""

    def __init__(
        self, model: ir.Model, cx: Context, instruments: Sequence[PassInstrumentation], history: History
    ) -> None:
        self._model, self._cx, self._instruments = model, cx, instruments
        self.history = history
        self._pairs = QuantizedPairs.of(cx)
        self._snapshots: dict[tuple[int, Pass], Snapshot] = {}
        self._loops = 0
        self._loop, self._round = 0, 0

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Fixpoint):
                self._repeat(step)
            elif isinstance(step, IfGradient):
                self._choose(step)
            elif isinstance(step, Slot):
                continue
            elif step.name in self._cx.options.skip:
                if step.name not in self.history.skipped:
                    self.history.skipped.append(step.name)
            else:
                self.history.records.append(self._pass(step))

    def _choose(self, choice: IfGradient) -> None:
        """Run one of the two paths."""
        name = value_requiring_gradient(self._model)
        if name is not None:
            self.history.remarks.append(f"optimized for gradients, because {name!r} requires one")
        self.steps(choice.otherwise if name is None else choice.then)

    def _repeat(self, fixpoint: Fixpoint) -> None:
        steps, idle = fixpoint.steps, 0
        around = self._loop, self._round
        self._loops += 1
        loop = self._loops
        for number, step in itertools.product(range(1, fixpoint.rounds + 1), steps):
            revision = self._cx.edit.revision
            self._loop, self._round = loop, number
            self.steps([step])
            idle = idle + 1 if self._cx.edit.revision == revision else 0
            if idle == len(steps):  # each step has left the current model unchanged
                break
        else:
            if fixpoint.rounds > 1:
                self._remark_unfinished(loop, fixpoint.rounds)
        self._loop, self._round = around

    def _remark_unfinished(self, loop: int, rounds: int) -> None:
        """Remark that ``fixpoint`` number ``loop`` reached its limit, with the passes still active."""
        busy = [
            f"{record.name} ({rules})" if (rules := _rules_text(record)) else record.name
            for record in self.history.records
            if record.loop == loop and record.round == rounds and record.changes
        ]
        by = f": {', '.join(busy)}" if busy else ""
        self.history.remarks.append(
            f"fixpoint stopped after {counted(rounds, 'round')} in which passes still changed the model{by}"
        )

    def _pass(self, pass_: Pass) -> PassRecord:
        """Run ``pass_``; the trace has its start and its end."""
        index = len(self.history.records) + 1
        start = {"nodes": self._cx.edit.inventory.reported}
        end = {**start, "rewrites": 0, "changes": {}}
        with tracer.span("pass", start=start, end=end, name=pass_.name, index=index) as traced:
            record = self._observed_pass(pass_, index)
            rewrites = sum(record.rewrites.values())
            diagnostics.count("passes")
            diagnostics.count("rewrites", rewrites)
            traced.ends_with(nodes=record.nodes, rewrites=rewrites, changes=dict(record.changes))
        return record

    def _observed_pass(self, pass_: Pass, index: int) -> PassRecord:
        """Run ``pass_``, and notify the instruments."""
        model, cx = self._model, self._cx
        for instrument in self._instruments:
            instrument.before_pass(pass_, index, model, cx)
        counter = _CountRewrites()
        cx.observers.append(counter)
        before = Counter(cx.edit.counts)
        cx.most_actions = cx.actions + _ACTIONS + _ACTIONS_PER_NODE * cx.edit.inventory.nodes
        cx.edit.stage = pass_.name
        first_remark, epoch, revision = len(cx.remarks), cx.edit.epoch, cx.edit.revision
        cx.forget_reads()
        start = time.perf_counter()
        cx.renew_ties()
        cx.facts.refresh()
        cx.changed = self._changed_since_last_run(pass_)
        try:
            if not pass_.operators or not pass_.operators.isdisjoint(cx.edit.inventory.operators):
                pass_.run(model, cx)
            if self._pairs is not None and cx.edit.revision != revision:
                cx.commit_reads()
                self._pairs.protect(model, cx)
        except (UsageError, ResourceLimit, UnsupportedModel, VerificationFailed, MemoryError):
            raise
        except SystemExit as error:  # must not end the process, perhaps with status 0
            raise UsageError(f"pass {index} ({pass_}) ends the process: SystemExit: {error}") from error
        except Exception as error:  # any exception of a pass
            origin = _origin(error)
            if not cx.options.own.isdisjoint((pass_.name, getattr(error, "owner", None))) and origin:
                raise blame(origin, f"pass {index} ({_failed_step(pass_, error)})") from origin.__cause__
            raise PassFailed.of(error, f"pass {index} ({pass_})") from error
        finally:
            cx.changed = None
            cx.observers.remove(counter)
            cx.commit_reads(epoch)
        seconds = time.perf_counter() - start
        changes = Counter(cx.edit.counts)
        changes.subtract(before)
        record = PassRecord(
            index,
            pass_.name,
            str(pass_),
            seconds,
            +changes,
            counter.rewrites,
            cx.edit.inventory.reported,
            pass_.does,
            tuple(cx.remarks[first_remark:]),
            self._round,
            self._loop,
        )
        for instrument in self._instruments:
            instrument.after_pass(pass_, record, model, cx)
        return record

    def _changed_since_last_run(self, pass_: Pass) -> frozenset[ir.Node] | None:
        """The nodes that ``pass_`` has to visit in this round of its fixpoint; ``None`` for all nodes."""
        if not self._round or not pass_.revisits_changes:
            return None
        snapshot = self._snapshots.get((self._loop, pass_))
        self._snapshots[self._loop, pass_] = Snapshot.of(self._cx)
        return None if snapshot is None else snapshot.changed_nodes(self._cx)


def _rules_text(record: PassRecord) -> str:
    """``drop-zero ×3, drop-cast``: the rules by which a pass changed the model, without the pass itself."""
    rules = [(name, count) for name, count in record.rewrites.most_common(_RULES) if name != record.name]
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in rules)


def _origin(error: Exception) -> Exception | None:
    """The exception raised by the pass or rule itself; ``None`` if graphopt stopped it."""
    while isinstance(error, PassFailed):
        if not isinstance(error.__cause__, Exception):
            return None
        error = error.__cause__
    return error


def _failed_step(pass_: Pass, error: Exception) -> str:
    """The pass, and the rule and the node within it that are known to have failed."""
    if isinstance(error, PassFailed) and error.owner is not None:
        return f"{pass_}, rule {error.owner} at {error.node}"
    return str(pass_)


class _CountRewrites(Observer):
    """Counts rewrites by rule or pass."""

    def __init__(self) -> None:
        self.rewrites: Counter[str] = Counter()

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Count the rewrite."""
        self.rewrites[action.owner] += 1


def _steps(items: Sequence[Item], registry: Registry, inside: tuple[str, ...]) -> Iterator[Step]:
    for item in items:
        if item.name == "fixpoint":
            yield Fixpoint(tuple(_steps(item.children, registry, inside)))
        elif item.name == "if-gradient":
            names = [child.name for child in item.children]
            if names.count(OTHERWISE) != 1:
                raise UsageError("if-gradient needs two paths", hint="if-gradient(A,B,otherwise,C)")
            at = names.index(OTHERWISE)
            paths = item.children[:at], item.children[at + 1 :]
            yield IfGradient(*(tuple(_steps(path, registry, inside)) for path in paths))
        elif item.name in SLOTS:
            yield Slot(item.name)
        elif item.name in registry.passes:
            yield registry.make(item.name, item.options)
        elif item.name in registry.pipelines:
            if item.name in inside:
                raise UsageError(f"pipeline {item.name!r} contains itself")
            yield from _steps(parse_items(registry.pipelines[item.name]), registry, (*inside, item.name))
        elif ":" in item.name:
            yield load_pass(item.name, item.options)
        else:
            raise unknown_step(item.name, registry)


def pipeline_text(step: Step, registry: Registry) -> str:
    """Text that parses back to ``step``, even with passes that are not in ``registry``."""
    if isinstance(step, Fixpoint):
        return f"fixpoint({','.join(pipeline_text(inner, registry) for inner in step.steps)})"
    if isinstance(step, IfGradient):
        then, otherwise = (
            [pipeline_text(inner, registry) for inner in path] for path in (step.then, step.otherwise)
        )
        return f"if-gradient({','.join([*then, OTHERWISE, *otherwise])})"
    if isinstance(step, Pass) and registry.passes.get(step.name) is not type(step):
        path = f"{type(step).__module__}:{type(step).__qualname__}"
        return path + str(step).removeprefix(step.name)
    return str(step)
