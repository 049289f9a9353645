"""Build variants of a model as files, and recognize variants with the same graph in onnxruntime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from graphopt import ir
from graphopt.errors import GraphoptError
from graphopt.fusion.kernel_library import Libraries
from graphopt.instrument.model_summary import Summary
from graphopt.instrument.report import Dropped
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.optimization_attempt import Attempt
from graphopt.ort.session import Source
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import make_pipeline
from graphopt.process.child import Child
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from graphopt.timing.alternating_runs import Setup
from graphopt.tuning.measurements import Size
from graphopt.tuning.search_space import Group, KernelRecorder, Variant
from graphopt.util.lazy_dataclass import dataclass

#: Maximum size, in bytes, of a model that is compared after onnxruntime's optimizations.
_LARGEST = 1 << 29
#: Wall-clock seconds for onnxruntime's optimizations.
_PATIENCE = 120.0


def attempt_for(attempt: Attempt, variant: Variant, dropped: Iterable[Dropped] = ()) -> Attempt:
    """The attempt that builds ``variant``, without the harmful rewrites in ``dropped``.

    The original undergoes only required passes, such as a requested opset conversion.
    """
    if variant.original:
        steps = tuple(step for step in attempt.pipeline.passes() if step.required)
        return replace(attempt, pipeline=Pipeline(steps))
    if not variant.weighed:  # unprofitable rewrites are reverted
        attempt = replace(attempt, pipeline=attempt.pipeline.eager())
    dropped = list(dropped)
    parted = [*map(RewriteSite.parse, variant.off), *(RewriteSite(drop.owner, drop.node) for drop in dropped)]
    off = frozenset(place.owner for place in parted if not place.node)
    places = frozenset(place for place in parted if place.node)
    limits = RewriteLimit(without=places, owners=off, skip=off)
    gate = limits if off or places else attempt.gate
    if variant.opset is not None:
        conversion = make_pipeline(f"convert-opset{{target={variant.opset}}}")
        attempt = replace(attempt, pipeline=Pipeline((*conversion.steps, *attempt.pipeline.steps)))
    reverted = [
        (place.owner, place.node, "reverted by tuning")
        for place in map(RewriteSite.parse, sorted(variant.off))
    ]
    withheld = (*attempt.options.withheld, *(drop.withheld for drop in dropped), *reverted)
    return replace(attempt, options=replace(limits.applied_to(attempt.options), withheld=withheld), gate=gate)


@dataclass(frozen=True)
class _Built:
    path: Path
    fingerprint: str
    size: Size
    libraries: SessionChoice
    kernels: list[Group]
    sites: dict[str, RewriteSite]


class VariantBuilder:
    """Builds variants of one model on demand, and caches them.

    Args:
        original: the model; not modified.
        dropped: rewrites that no variant may have.
    """

    def __init__(
        self,
        original: ir.Model,
        attempt: Attempt,
        dropped: Iterable[Dropped],
        folder: Path,
        setup: Setup,
        libraries: Callable[[ir.Model], Libraries] = lambda model: Libraries(),
    ) -> None:
        self._original = original
        self._libraries = libraries
        self._built: list[Libraries] = []
        options = replace(attempt.options, strict_fusion={})  # required of the result only
        self._attempt = replace(
            attempt,
            options=options,
            verifier=None,
            verify=False,
            validate_each=False,
            verify_each=False,
            instruments=(),
        )
        self._dropped = list(dropped)
        self._folder = folder
        self._setup = replace(setup, feeds={}, choices={})
        self._child: Child | None = None
        self._made: dict[Variant, _Built | GraphoptError] = {}
        self._lowered: dict[tuple[Path, tuple[str, ...]], str | None] = {}

    def __enter__(self) -> VariantBuilder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._child is not None:
            self._child.close()

    def size(self, variant: Variant) -> Size:
        """Nodes, bytes of weights, and constants of a variant; raises like :meth:`path`."""
        return self._make(variant).size

    def path(self, variant: Variant) -> Path:
        """The file of a variant.

        Raises:
            GraphoptError: the variant can't be built.
        """
        return self._make(variant).path

    def kernels(self, variant: Variant) -> list[Group]:
        """The native groups of a variant; raises like :meth:`path`."""
        return self._make(variant).kernels

    def model(self, variant: Variant) -> ir.Model:
        """The model of a variant; raises like :meth:`path`."""
        return ir.load(self.path(variant))

    def sites(self, variant: Variant) -> dict[str, RewriteSite]:
        """The rewrites that created calls of native groups, by first output; raises like :meth:`path`."""
        return self._make(variant).sites

    def choice(self, variant: Variant) -> SessionChoice:
        """The session options of a variant, with its kernels; raises like :meth:`path`."""
        return variant.choice | self._make(variant).libraries

    def same(self, one: Variant, other: Variant) -> bool:
        """Whether two variants have the same graph, before or after onnxruntime's optimizations."""
        if replace(one.choice, disabled=()) != replace(other.choice, disabled=()):
            return False
        first, second = self._make(one), self._make(other)
        if first.fingerprint == second.fingerprint and one.choice == other.choice:
            return True
        lowered = self._lower(first, one.choice.disabled)
        return lowered is not None and lowered == self._lower(second, other.choice.disabled)

    def _make(self, variant: Variant) -> _Built:
        key = replace(variant, choice=SessionChoice())
        if key not in self._made:
            try:
                self._made[key] = self._write(variant)
            except GraphoptError as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, GraphoptError):
            raise made
        return made

    def _write(self, variant: Variant) -> _Built:
        model, kernels = self._original, KernelRecorder()
        if not variant.original:
            model = copy(model)
            attempt = replace(self._attempt, instruments=(kernels,))
            attempt_for(attempt, variant, self._dropped).run(model)
        path = self._folder / f"{len(self._made)}.onnx"
        ir.save(model, path)
        summary = Summary.of(model)
        constants = summary.constants + sum(len(graph.initializers) for graph in ir.graphs_of(model))
        size = (summary.nodes + summary.function_nodes, summary.weight_bytes, constants)
        fingerprint = ir.fingerprint(model, names=True)
        return _Built(path, fingerprint, size, self._library(model), kernels.groups(), dict(kernels.sites))

    def _library(self, model: ir.Model) -> SessionChoice:
        """The library with the kernels of ``model``, which may also contain others."""
        names = {key[1] for key in model.functions if key[0] == graphopt_operators.NATIVE_DOMAIN}
        if not names:
            return SessionChoice()
        found = next((built for built in self._built if names.issubset(built.kernels)), None)
        if found is None:
            found = self._libraries(model)
            self._built.append(found)
        return found.choice

    def _lower(self, made: _Built, disabled: tuple[str, ...]) -> str | None:
        """The fingerprint of a model after onnxruntime's optimizations; ``None`` if unknown."""
        path = made.path
        key = (path, disabled)
        if key not in self._lowered:
            self._lowered[key] = None
            target = path.with_suffix(".lowered.onnx")
            with contextlib.suppress(GraphoptError):  # after an error, the variant is measured
                if sum(file.stat().st_size for file in self._folder.glob(f"{path.stem}.*")) < _LARGEST:
                    if self._child is None:
                        self._child = Child(preload=["onnxruntime", "graphopt.tuning.variant_builder"])
                    choice = made.libraries | SessionChoice(disabled=disabled)
                    self._child.call(lower, path, self._setup, choice, str(target), timeout=_PATIENCE)
                    self._lowered[key] = ir.fingerprint(ir.load(target), names=True)
            target.unlink(missing_ok=True)
        return self._lowered[key]


def lower(source: Source, setup: Setup, choice: SessionChoice, target: str) -> None:
    """Write a model after onnxruntime's optimizations to ``target``; runs in a child."""
    replace(setup, choices={"": choice}).session(source, optimized=target)
