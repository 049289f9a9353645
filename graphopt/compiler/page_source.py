"""The contents of the report page of one model, of an optimization, or of two models."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import Result, optimized
from graphopt.compiler.verify_bundle import bundle_of
from graphopt.context import Options, context_for
from graphopt.instrument.lineage import Lineage, Recorder
from graphopt.model_arguments import ModelLike, copy
from graphopt.ort.devices import Device
from graphopt.page.graph_data import NodeRemarks, graph_data
from graphopt.page.graph_relations import has_lineage_of, relate_by_lineage, relate_by_name
from graphopt.page.page_data import GraphData
from graphopt.page.refusal_recorder import RefusalRecorder
from graphopt.page.section import PageSource, check_installed
from graphopt.page.stage_recorder import StageRecorder
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.placement.predict import predict
from graphopt.specialization.bundle.names import GENERAL_NAME

if TYPE_CHECKING:
    from graphopt.specialization.bundle.loaded_bundle import Bundle

_Id = Literal["original", "optimized"]


class PageRecorder:
    """Observes a run of ``optimize`` for its page.

    Raises:
        UsageError: a package of the extra ``report`` is not installed.
    """

    def __init__(self) -> None:
        check_installed()
        self._lineage, self._stages, self._refusals = Recorder(), StageRecorder(), RefusalRecorder()

    @property
    def instruments(self) -> tuple[PassInstrumentation, ...]:
        """The instruments for the option ``instruments``."""
        return self._lineage, self._stages, self._refusals

    def source(
        self,
        env: Environment,
        original: ir.Model,
        result: Result,
        labels: tuple[str, str] = ("original", "result"),
        command: Sequence[str] = (),
    ) -> PageSource:
        """The contents of the page.

        Args:
            env: the options of the run.
            original: the model before the run; it is not changed.
            result: the result of the run.
            labels: the names of both models in the page.
            command: the words of the command that repeats the run.
        """
        notes, lineage = self._refusals.notes, Lineage.of(result.model, self._lineage)
        before = _graph(env, original, "original", labels[0], notes)
        after = _graph(env, result.model, "optimized", labels[1], notes, lineage.originals)
        makers = relate_by_lineage(before, after, lineage)
        return PageSource(
            labels[0],
            shlex.join(command),
            (original, result.model),
            (before, after),
            makers,
            result.report,
            self._stages.stages,
            names=labels,
        )


def page_source(
    env: Environment,
    model: ModelLike,
    other: ModelLike | Bundle | None = None,
    labels: tuple[str, str] = ("original", "result"),
    command: Sequence[str] = (),
) -> PageSource:
    """The contents of a page of one or two models; further arguments are those of :class:`PageRecorder`."""
    check_installed()
    original = env.load(model)
    if other is None:
        recorder = PageRecorder()
        env = env.having({"instruments": (*env.options["instruments"], *recorder.instruments)})
        return recorder.source(env, original, optimized(env, copy(original)), labels, command)
    bundle = bundle_of(env, other)
    result = env.load(cast(ModelLike, other)) if bundle is None else bundle.model(GENERAL_NAME)
    lineage = Lineage.read(result)
    before = _graph(env, original, "original", labels[0])
    after = _graph(
        env, result, "optimized", labels[1], originals=() if lineage is None else lineage.originals
    )
    makers: list[str] = []
    if lineage is not None and has_lineage_of(before, lineage):
        makers = relate_by_lineage(before, after, lineage)
    else:
        relate_by_name(before, after)
    return PageSource(
        " and ".join(labels),
        shlex.join(command),
        (original, result),
        (before, after),
        makers,
        bundle=bundle,
        names=labels,
    )


def view_source(env: Environment, model: ModelLike, label: str = "model") -> PageSource:
    """The contents of the page of one model, which is not optimized.

    Raises:
        UsageError: a package of the extra ``report`` is not installed.
    """
    check_installed()
    loaded = env.load(model)
    return PageSource(label, "", (loaded,), (_graph(env, loaded, "original", label),))


def _graph(
    env: Environment,
    model: ir.Model,
    id: _Id,
    label: str,
    notes: Mapping[str, Sequence[str]] | None = None,
    originals: Sequence[str] = (),
) -> GraphData:
    """The data of ``model`` with the predicted placement of its nodes."""
    remarks = _remarks(model, env.target, notes or {})
    return graph_data(context_for(model, Options(device=env.target)), id, label, remarks, originals)


def _remarks(model: ir.Model, device: Device, notes: Mapping[str, Sequence[str]]) -> NodeRemarks:
    if device.capabilities.is_host:
        return NodeRemarks(notes)
    found = {name: list(reasons) for name, reasons in notes.items()}
    devices: dict[str, str] = {}
    for node in predict(model, device).nodes:
        if node.on_device:
            continue
        devices[node.node] = "CPU"
        if node.reason is not None:
            found.setdefault(node.node, []).append(f"on the CPU: {node.reason}")
    return NodeRemarks(found, devices, str(device).upper())
