"""A trial: one run of the pipeline over a copy of the model, with some rewrites refused.

Within one run, rewrites are numbered from the start. Across different runs they are identified by their site,
the rule and the node, because numbers shift when a rewrite is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path

import onnx

from graphopt import ir, publish
from graphopt.context import Action, Context, Options, context_for
from graphopt.errors import GraphoptError, PassFailed, ResourceLimit, SystemExhausted
from graphopt.model_arguments import copy
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pipeline import Pipeline, pipeline_text
from graphopt.process.child import Child, ProcessCrashed
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class RewriteStep:
    """One rewrite of a run, and its pass.

    Attributes:
        place: the rule and the node.
        index: number of the pass in the run, from 1.
        name: the pass with its options.
        made: labels of the added nodes.
    """

    place: RewriteSite
    index: int
    name: str
    made: tuple[str, ...] = ()


@dataclass
class TrialResult:
    """The result of a trial.

    Attributes:
        model: the result; an intermediate state if the pipeline failed; ``None`` if the process died.
        passes: the passes begun, in order, as text.
        failed_at: the rule and the node that failed, if known.
        endless: whether rewriting was stopped because it did not terminate.
    """

    model: ir.Model | None
    steps: list[RewriteStep] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    error: str | None = None
    failed_at: RewriteSite | None = None
    endless: bool = False


class _PassLimitReached(Exception):
    """The limit on the number of passes is reached."""


class _RewriteRecorder(PassInstrumentation):
    """Applies ``limits`` to each rewrite, and records rewrites and passes.

    Args:
        journal: a file that receives a line for each event, in case the process dies.
    """

    def __init__(self, limits: RewriteLimit, journal: Path | None = None) -> None:
        self._limits = limits
        self._journal = None if journal is None else journal.open("w", encoding="utf-8", errors="replace")
        self.steps: list[RewriteStep] = []
        self.passes: list[str] = []

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Record the pass, unless the limit is reached."""
        if self._limits.passes is not None and index > self._limits.passes:
            raise _PassLimitReached
        self.passes.append(str(pass_))
        self._write("pass", str(pass_))

    def __call__(self, action: Action) -> bool:
        """Decide whether a rewrite is allowed, and record it."""
        if not self._limits(action):
            return False
        self.steps.append(
            RewriteStep(RewriteSite(action.owner, action.node), len(self.passes), self.passes[-1])
        )
        self._write("rewrite", action.owner, action.node)
        return True

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        step = self.steps[action.index - 1]
        self.steps[action.index - 1] = replace(step, made=tuple(map(ir.label, made)))

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _write(self, *words: str) -> None:
        if self._journal is not None:
            self._journal.write(json.dumps(words) + "\n")
            self._journal.flush()


@dataclass(frozen=True)
class Trial:
    """Runs a pipeline over copies of one model, in this process.

    Attributes:
        model: the model; not modified.
    """

    model: ir.Model
    pipeline: Pipeline
    options: Options = field(default_factory=Options)

    def __call__(self, limits: RewriteLimit) -> TrialResult:
        """Run under ``limits``; an exception of a pass becomes part of the result."""
        return run(copy(self.model), self.pipeline, self.options, limits)

    def on(self, model: ir.Model) -> Trial:
        """The trial of another model."""
        return replace(self, model=model)


@dataclass(frozen=True)
class IsolatedTrial(Trial):
    """A trial in a child process, which may crash or diverge.

    Attributes:
        seconds: limit on the wall-clock seconds of a run.
    """

    child: Child = field(kw_only=True)
    seconds: float = 120.0

    def __call__(self, limits: RewriteLimit) -> TrialResult:
        """Run under ``limits``; the death of the process becomes part of the result."""
        with publish.ScratchFolder() as folder:
            journal = folder / "journal"
            data = ir.to_bytes(self.model)
            try:
                result = self.child.call(
                    _run_bytes, data, self.pipeline, self.options, limits, journal, timeout=self.seconds
                )
            except SystemExhausted:  # no rewrite is at fault
                raise
            except (ProcessCrashed, ResourceLimit) as error:
                return _from_journal(journal, error.message.replace("onnxruntime", "the process"))
        outcome, result_data = result
        if result_data is not None:
            outcome.model = ir.from_proto(onnx.ModelProto.FromString(result_data))
        return outcome


RunTrial = Callable[[RewriteLimit], TrialResult]


def run(
    model: ir.Model, pipeline: Pipeline, options: Options, limits: RewriteLimit, journal: Path | None = None
) -> TrialResult:
    """Run ``pipeline`` over ``model`` in place, under ``limits``."""
    trace = _RewriteRecorder(limits, journal)
    options = replace(limits.applied_to(options), own=frozenset())  # a failure is part of the outcome
    outcome = TrialResult(model, trace.steps, trace.passes)
    cx = context_for(model, options, gate=trace, observers=[trace])
    try:
        pipeline.run(model, cx, [trace])
    except _PassLimitReached:
        pass
    except Exception as error:  # any exception of a pass is a fault to be found
        outcome.error = _text(error)
        if isinstance(error, PassFailed) and error.owner is not None:
            outcome.failed_at, outcome.endless = RewriteSite(error.owner, error.node), error.endless
    finally:
        cx.close()
        trace.close()
    return outcome


def _run_bytes(
    data: bytes, pipeline: Pipeline, options: Options, limits: RewriteLimit, journal: Path
) -> tuple[TrialResult, bytes | None]:
    """:func:`run` for a child, with serialized models."""
    outcome = run(ir.from_proto(onnx.ModelProto.FromString(data)), pipeline, options, limits, journal)
    result, outcome.model = outcome.model, None
    assert result is not None
    if outcome.error is not None:
        return outcome, None
    try:
        return outcome, ir.to_bytes(result)
    except Exception as error:  # a pass produced a model that can't be written
        outcome.error = f"the result can't be written: {_text(error)}"
        return outcome, None


def _from_journal(journal: Path, error: str) -> TrialResult:
    """The result up to the death of the process."""
    outcome = TrialResult(None, error=error)
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    for line in lines:
        kind, *words = json.loads(line)
        if kind == "pass":
            outcome.passes.append(words[0])
        else:
            place = RewriteSite(words[0], words[1])
            outcome.steps.append(RewriteStep(place, len(outcome.passes), outcome.passes[-1]))
    return outcome


def _text(error: Exception) -> str:
    if isinstance(error, GraphoptError):
        return error.message
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def steps_text(pipeline: Pipeline) -> list[str]:
    """Each step as text for :func:`graphopt.passes.pipelines.make_pipeline`, also for passes of callers."""
    from graphopt.passes.pipelines import registry

    known = registry()
    return [pipeline_text(step, known) for step in pipeline.steps]


def find_node(model: ir.Model, label: str) -> ir.Node | None:
    """The node with the label ``label``."""
    nodes = (node for graph in ir.graphs_of(model) for node in graph)
    return next((node for node in nodes if ir.label(node) == label), None)
