"""Differential testing of two models (:mod:`graphopt.verification` has the requirements)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Self

from graphopt import ir
from graphopt.diagnostics import record, tracer
from graphopt.errors import ResourceLimit, RuntimeFailure, UnsupportedModel
from graphopt.inputs.feeds import Feeds, InputOptions, Inputs
from graphopt.ir.signature import Change, Signature, diff
from graphopt.numerics import Numerics
from graphopt.ort.devices import CPU, Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.model_runs import Runner, Runs
from graphopt.ort.session import Source
from graphopt.ort.session_options import SessionChoice
from graphopt.process.resource_usage import ResourceMeter
from graphopt.verification.candidate_comparison import CandidateComparison, absolute_rounding
from graphopt.verification.case import Case, Cases, cases_like, wrongly_declared
from graphopt.verification.case_gatherer import QUICK, CaseGatherer
from graphopt.verification.empty_cases import empty_cases
from graphopt.verification.empty_tensor_faults import EmptyTensors, Unreliable
from graphopt.verification.load_comparison import load_failures
from graphopt.verification.numeric_traits import has_empty_tensors, numeric_traits_of, randomness_of
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.part_comparison import compare_in_parts, parts_refusal
from graphopt.verification.perturb_rounding import with_inner_rounding
from graphopt.verification.random_outputs import find_unsteady_outputs, share_random_outputs
from graphopt.verification.run_cost import RunCost
from graphopt.verification.runners import DIVERGENT_QUICK, Runners
from graphopt.verification.verdict import (
    ORIGINAL_FAILS,
    PROVEN_EXACT,
    Row,
    Skipped,
    Verdict,
    without_inputs,
)

#: Maximum size of a model's weights, in bytes, for which instrumented copies of the model are loaded.
_INSTRUMENTED_BYTES = 1 << 29


def verify(
    original: ir.Model | Source,
    candidate: ir.Model | Source,
    *,
    numerics: Numerics = Numerics.REASSOCIATES,
    options: InputOptions | None = None,
    signature: bool = True,
    libraries: Sequence[str] = (),
    **settings: Any,
) -> Verdict:
    """Compare ``candidate`` with ``original``; ``settings`` as for :class:`Verifier`."""
    with Verifier(original, options=options, **settings) as verifier:
        return verifier.verify(candidate, numerics=numerics, signature=signature, libraries=libraries)


class Verifier:
    """Compares candidates with one original, which runs only once for all of them.

    Args:
        original: a model, its serialized form, or its path.
        options: the user's inputs.
        device: the device that runs the models.
        threads: threads inside one operator; by default onnxruntime's choice.
        seconds: CPU seconds for runs; after about half of it, only the most discriminating inputs are tried.
        work: estimated CPU seconds for runs, which limit the number of comparisons independently of the
            machine and its load; ``None`` for no limit.
        empty: also try dynamic dims of size 0.
        isolate: use child processes on any device. On the CPU, every model runs in a child process; on other
            devices, only models that may crash or diverge, and runs with dims of size 0.
        memory: bytes of memory of a child in addition to the weights; ``None`` for no limit.
        cpu_level: x86-64 level of the kernels in the candidates' libraries.
        allow_external: folders outside the model's own that may contain external data.
        signature: the required interface of candidates; by default the original's.
        loaded: the original as an object, if it is loaded already. It is read only here, and may change
            afterwards.

    Attributes:
        given: whether the user gave shapes, arrays or sizes of dims.
        device, seconds, isolated: the arguments.

    Raises:
        InvalidModel, UsageError: the original can't be read, or the options do not fit it.
    """

    def __init__(
        self,
        original: ir.Model | Source,
        *,
        options: InputOptions | None = None,
        device: Device = CPU,
        threads: int | None = None,
        seconds: float = 10.0,
        work: float | None = None,
        empty: bool = True,
        isolate: bool = False,
        memory: int | None = None,
        cpu_level: int | None = None,
        allow_external: Sequence[str | os.PathLike[str]] = (),
        signature: Signature | None = None,
        loaded: ir.Model | None = None,
    ) -> None:
        self.given = options is not None and options.given
        self.device, self.seconds, self.isolated = device, seconds, isolate
        self._cpu_level = cpu_level
        self._allow_external = allow_external
        self._artifact = Artifact(original, allow_external, is_sent=True)
        if loaded is None or loaded.graph.meta.get(ir.COPIED_OUTPUTS):
            loaded = self._artifact.corrected()  # onnxruntime then runs this model instead of the file
        model = loaded
        self._signature = Signature.of(model)
        self._required_signature = signature or self._signature
        self._output_traits = numeric_traits_of(model)
        pairs = zip(model.graph.outputs, self._output_traits, strict=True)
        self._rounding = [absolute_rounding(value, output.coarsest) for value, output in pairs]
        self._random = randomness_of(model)
        self._empties = has_empty_tensors(model)
        self._small = ir.initializer_bytes(model) < _INSTRUMENTED_BYTES
        self._runners = Runners(model, device, threads=threads, memory=memory, isolate=isolate)
        self._memory_refusal = self._runners.memory_plan.refusal
        self._unfeedable: str | None = None
        self._inputs: Inputs | None = None
        try:
            self._inputs = Inputs(model, options, reload=self._artifact.model)
        except UnsupportedModel as error:  # an input of a type that can't be generated
            self._unfeedable = str(error)
        self._empty = empty and self._inputs is not None and self._inputs.dynamic
        # whole models that do not fit into memory are not written
        self._original = self._runners.runner(b"" if self._memory_refusal else self._artifact.source)
        self._perturbed: Runner | None = None
        self._reference = Reference(self._artifact.model)
        self._empty_tensors = EmptyTensors(
            self._artifact.model, lambda source: self._runners.runner(source, isolated=True)
        )
        cost = RunCost() if work is None else RunCost.of(model)
        self._limits: Any = {"cost": cost.seconds, "work": math.inf if work is None else work}
        self._cases: Cases | None = None
        self._gatherer: CaseGatherer | None = None
        self._empty_cases: Cases | None = None
        self._parted_cases: dict[tuple[str, str], Case] = {}
        self._empty_runner: Runner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End child processes and remove temporary files."""
        self._runners.close()
        self._artifact.close()

    def verify(
        self,
        candidate: ir.Model | Source,
        *,
        numerics: Numerics = Numerics.REASSOCIATES,
        signature: bool = True,
        bits: bool = False,
        like: Row | None = None,
        libraries: Sequence[str] = (),
        proven_exact: bool = False,
    ) -> Verdict:
        """Compare ``candidate`` with the original.

        Args:
            candidate: a model, its serialized form, or its path.
            numerics: the least exact class of the rewrites applied.
            signature: require an unchanged interface.
            bits: require bit-identical outputs without optimizations. Not even bit-exact rewrites guarantee
                that: some kernels use another order of evaluation if an operand is constant.
            like: compare only on the inputs of this row of an earlier verdict.
            libraries: operator libraries of the candidate. The candidate is compared without and with these
                libraries.
            proven_exact: the rewrites are proven to preserve every bit
                (:attr:`graphopt.rewrite.Rule.proven_exact`): compare only ordinary inputs, at all sizes, and
                zeros and special values at the smallest sizes, unless some bit differs. It has no effect in
                half precision: onnxruntime computes some operators in float32, and drops the Casts between
                neighbors, so that even the removal of an Identity changes where numbers are rounded.

        Raises:
            InvalidModel, UsageError: the candidate can't be read.
            RuntimeFailure: onnxruntime crashes while loading the original.
        """
        with tracer.span("verification", end={"equal": None, "runs": 0}) as traced, ResourceMeter() as meter:
            artifact = Artifact(candidate, self._allow_external, is_sent=True)
            try:
                is_proven = proven_exact and like is None and not (bits or self._random.varies)
                is_proven = is_proven and not any(output.halves for output in self._output_traits)
                rows, changes, skipped, unverifiable = self._judge(
                    artifact, numerics, signature, bits, like, tuple(libraries), is_proven
                )
                record.count("comparisons", len(rows))
                equal = None if unverifiable is not None else not changes and all(row.ok for row in rows)
                traced.ends_with(equal=equal, runs=len(rows))
            finally:
                self._runners.close_candidates()
                self._perturbed = None
                artifact.close()
        return Verdict(
            tuple(rows),
            tuple(map(str, changes)),
            tuple(skipped),
            unverifiable,
            str(self.device),
            meter.seconds,
            meter.peak_bytes + self._runners.peak_bytes,
        )

    @property
    def refusal(self) -> str | None:
        """The reason why nothing can be compared: the original, run on first access, always fails."""
        if self._memory_refusal is not None:
            return parts_refusal(self._artifact.model(), self._inputs, self._runners)
        if (refusal := self._gathered().refusal) is None:
            return None
        model = self._artifact.model()
        suspect = ir.find_unknown(model) or ir.find_misuse(model)
        return without_inputs(refusal, given=self.given) + (f"; {suspect}" if suspect else "")

    @property
    def lacks_memory(self) -> bool:
        """Whether not even one session of the original fits into memory."""
        return self._memory_refusal is not None

    def default_fault(self) -> str | None:
        """onnxruntime's error when it loads the original with optimizations, if it fails."""
        if self._runners.memory_plan.sessions.off_only is not None:
            return None
        try:
            self._original.load("default")
        except (RuntimeFailure, ResourceLimit) as failure:
            return str(failure)
        return None

    def feeds(self, row: Row) -> Feeds | None:
        """The inputs of ``row`` of one of this verifier's verdicts; ``None`` if the row has no run."""
        gathered = [cases.found for cases in (self._cases, self._empty_cases) if cases]
        sample = (self._gatherer and self._gatherer.sample) or []
        found = cases_like([*chain(*gathered, sample, self._parted_cases.values())], row)
        return found[0].feeds if found else None

    def _perturb(self) -> Runner | None:
        """The original with differently rounded intermediate results in each run; ``None`` if it is large."""
        if self._perturbed is None and self._small:
            source = with_inner_rounding(ir.to_bytes(self._artifact.model()))
            self._perturbed = self._runners.runner(source, is_candidate=True)
        return self._perturbed

    def _judge(
        self,
        artifact: Artifact,
        numerics: Numerics,
        signature: bool,
        bits: bool,
        like: Row | None,
        libraries: tuple[str, ...],
        is_proven: bool,
    ) -> tuple[list[Row], list[Change], list[Skipped], str | None]:
        cases = self._gathered()
        if cases.crash is not None:
            raise cases.crash
        model = artifact.corrected()
        changes: list[Change] = []
        if signature:
            distrusted = wrongly_declared(self._signature, cases.found)
            changes = diff(self._required_signature, Signature.of(model), distrusted=distrusted)
        if any(change.kind in ("gone", "new") for change in changes):
            return [], changes, cases.skipped, None
        kernels = SessionChoice(libraries=libraries, cpu_level=self._cpu_level)
        forms = [None, kernels] if libraries else [None]
        if self._memory_refusal is not None:
            arguments = self._artifact.model(), model, self._inputs, numerics, self.seconds / 2
            rows, skipped, refusal, parted = compare_in_parts(*arguments, self._runners, **self._limits)
            self._parted_cases |= {(case.binding, case.distribution): case for case in parted}
            if self._empty and refusal is None:
                skipped.append(Skipped("dims of size 0", "memory", "parts run on sizes of at least 1"))
            return rows, changes, skipped, refusal
        if cases.slow:
            return [], changes, cases.skipped, self.refusal
        if cases.refusal is not None:
            rows = [
                replace(row, libraries=form is not None)
                for form in forms
                for row in load_failures(
                    self._original, self._runners.candidate(artifact.source, model, form)
                )
            ]
            return rows, changes, cases.skipped, self.refusal
        gatherer = self._gatherer
        assert gatherer is not None, "the original has inputs, and runs"
        if not is_proven:
            self._add_further()
        outputs = [port.name for port in self._signature.outputs]
        references = (self._reference, Reference(artifact.model))
        rows = []
        for form in forms:
            runs = self._runners.candidate(artifact.source, model, form)
            comparison = CandidateComparison(
                outputs,
                runs,
                numerics,
                self._output_traits,
                self._rounding,
                self._original,
                references,
                bits=bits,
                draws_random=self._random.draws,
                not_random=self._random.indices and self._random.indices - randomness_of(model).indices,
                empties=self._empties,
                perturbed=self._perturb,
                unreliable=self._unreliable_in,
                unsteady=partial(self._unsteady_in, cases, self._original),
            )
            known = len(cases.found)
            found = comparison.rows(cases_like(cases.found, like))
            if is_proven:
                found += comparison.rows(gatherer.sampled())
            if is_proven and not _is_same_without_optimizations(found):
                is_proven = False
                self._add_further()
                compared = {(row.binding, row.distribution, row.level) for row in found}
                found += [
                    row
                    for row in comparison.rows(cases.found[known:])
                    if (row.binding, row.distribution, row.level) not in compared
                ]
            if self._empty and (like is None or not found):
                empty = self._gathered_empty(cases)
                if isinstance(runs, Runs):
                    runs = self._runners.candidate(artifact.source, model, form, empty=True)
                unsteady = partial(self._unsteady_in, empty, self._empty_original())
                comparison = replace(comparison, candidate=runs, original=None, unsteady=unsteady)
                found += comparison.rows(cases_like(empty.found, like))
            rows += found if form is None else [replace(row, libraries=True) for row in found]
        gathered = [one for one in (cases, self._empty_cases) if one is not None]
        skipped = [
            one
            for known in gathered
            for one in known.skipped
            if one.distribution != "huge" or numerics is Numerics.EXACT
        ]
        if is_proven and gatherer.has_further:
            skipped.append(Skipped("other kinds of values", PROVEN_EXACT, "every rewrite preserves all bits"))
        return rows, changes, skipped, None if rows else f"{ORIGINAL_FAILS} in repeated runs"

    def _gathered(self) -> Cases:
        if self._cases is None:
            refusal = self._memory_refusal or self._unfeedable
            if self._inputs is None or refusal is not None:
                self._cases = Cases(refusal=refusal)
            else:
                self._gatherer = CaseGatherer(
                    self._inputs,
                    self._original,
                    random=self._random.varies,
                    seconds=self.seconds / 2,
                    quick=DIVERGENT_QUICK if self._runners.is_divergent else QUICK,
                    is_single=self._runners.memory_plan.sessions.is_single,
                    **self._limits,
                )
                self._gatherer.add_ordinary()
                self._cases = self._gatherer.cases
                share_random_outputs(self._cases.found, self._random)
                if self._cases.found:
                    self._cases.skipped += self._runners.memory_plan.left_out
        return self._cases

    def _add_further(self) -> None:
        """Add the cases of further distributions."""
        if self._gatherer is not None and self._gatherer.has_further:
            self._gatherer.add_further()
            share_random_outputs(self._gatherer.cases.found, self._random)

    def _unreliable_in(self, case: Case) -> Unreliable:
        """Outputs that onnxruntime computes wrongly in ``case`` because of empty tensors, cached."""
        if case.unreliable is None:
            may = self._small and (case.empty or self._empties or self._empty_tensors.data_dependent)
            case.unreliable = self._empty_tensors.unreliable(case.feeds) if may else Unreliable()
        return case.unreliable

    def _unsteady_in(self, cases: Cases, original: Runner, case: Case) -> bool:
        """Whether outputs change from run to run, although no operator draws random numbers."""
        return not self._random.draws and find_unsteady_outputs(case, cases, original)

    def _empty_original(self) -> Runner:
        """The original for dims of size 0, in a child."""
        if self._empty_runner is None:
            isolated = self._runners.isolated
            source = self._artifact.source
            self._empty_runner = self._original if isolated else self._runners.runner(source, isolated=True)
        return self._empty_runner

    def _gathered_empty(self, cases: Cases) -> Cases:
        if self._empty_cases is None:
            assert self._inputs is not None
            self._empty_cases = empty_cases(
                self._inputs, self._empty_original(), cases, random=self._random.varies
            )
        return self._empty_cases


def _is_same_without_optimizations(rows: Sequence[Row]) -> bool:
    """Whether all comparisons agree, those of sessions without optimizations in every bit."""
    return bool(rows) and all(row.ok and (row.identical or row.level != "off") for row in rows)
