"""Differential testing of two models (:mod:`graphopt.verification` has the requirements)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from graphopt import ir
from graphopt.diagnostics import record, tracer
from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted, UnsupportedModel
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
from graphopt.verification.comparison_request import ComparisonRequest
from graphopt.verification.empty_tensor_faults import EmptyTensors, Unreliable
from graphopt.verification.load_comparison import load_failures
from graphopt.verification.numeric_traits import has_empty_tensors, numeric_traits_of, randomness_of
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.original_cases import OriginalCases
from graphopt.verification.part_comparison import compare_in_parts, parts_refusal
from graphopt.verification.perturb_rounding import with_inner_rounding
from graphopt.verification.random_outputs import find_unsteady_outputs
from graphopt.verification.run_cost import RunCost
from graphopt.verification.runners import Runners
from graphopt.verification.verdict import (
    ORIGINAL_FAILS,
    PROVEN_EXACT,
    Row,
    Skipped,
    Verdict,
    agree_in_every_bit,
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
        device: the device that runs the models, without TF32.
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
        device = device.exact
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
        unfeedable: str | None = None
        self._inputs: Inputs | None = None
        try:
            self._inputs = Inputs(model, options, reload=self._artifact.model)
        except UnsupportedModel as error:  # an input of a type that can't be generated
            unfeedable = str(error)
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
        self._cases = OriginalCases(
            self._artifact,
            self._inputs,
            self._original,
            self._runners,
            self._random,
            seconds / 2,
            self._memory_refusal or unfeedable,
            self._limits,
        )

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
                request = ComparisonRequest(
                    artifact, numerics, signature, bits, like, tuple(libraries), is_proven
                )
                verdict = self._judge(request)
                record.count("comparisons", len(verdict.rows))
                equal = None if verdict.unverifiable is not None else verdict.ok
                traced.ends_with(equal=equal, runs=len(verdict.rows))
            finally:
                self._runners.close_candidates()
                self._perturbed = None
                artifact.close()
        return replace(
            verdict,
            device=str(self.device),
            seconds=meter.seconds,
            peak_bytes=meter.peak_bytes + self._runners.peak_bytes,
        )

    @property
    def refusal(self) -> str | None:
        """The reason why nothing can be compared: the original, run on first access, always fails."""
        if self._memory_refusal is not None:
            return parts_refusal(self._artifact.model(), self._inputs, self._runners)
        if (refusal := self._cases.gathered().refusal) is None:
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
        except SystemExhausted:
            raise
        except (RuntimeFailure, ResourceLimit) as failure:
            return str(failure)
        return None

    def feeds(self, row: Row) -> Feeds | None:
        """The inputs of ``row`` of one of this verifier's verdicts; ``None`` if the row has no run."""
        found = cases_like(self._cases.all(), row)
        return found[0].feeds if found else None

    def _perturb(self) -> Runner | None:
        """The original with differently rounded intermediate results in each run; ``None`` if it is large."""
        if self._perturbed is None and self._small:
            source = with_inner_rounding(ir.to_bytes(self._artifact.model()))
            self._perturbed = self._runners.runner(source, is_candidate=True)
        return self._perturbed

    def _judge(self, request: ComparisonRequest) -> Verdict:
        """The verdict, without the device and the costs."""
        cases = self._cases.gathered()
        if cases.crash is not None:
            raise cases.crash
        changes = self._interface_changes(request, cases)
        if any(change.kind in ("gone", "new") for change in changes):
            verdict = Verdict(skipped=tuple(cases.skipped))
        elif self._memory_refusal is not None:
            verdict = self._compare_in_parts(request)
        elif cases.refusal is not None:
            rows = () if cases.slow else self._compare_loading(request)
            verdict = Verdict(rows, skipped=tuple(cases.skipped), unverifiable=self.refusal)
        else:
            verdict = self._compare_runs(request, cases)
        return replace(verdict, signature=tuple(map(str, changes)))

    def _interface_changes(self, request: ComparisonRequest, cases: Cases) -> list[Change]:
        """The changes of the required interface; none if the request excludes it."""
        model = request.model  # a candidate that can't be read is an error in any case
        if not request.signature:
            return []
        distrusted = wrongly_declared(self._signature, cases.found)
        return diff(self._required_signature, Signature.of(model), distrusted=distrusted)

    def _compare_in_parts(self, request: ComparisonRequest) -> Verdict:
        """Compare models that do not fit into memory as a whole."""
        rows, skipped, refusal, cases = compare_in_parts(
            self._artifact.model(),
            request.model,
            self._inputs,
            request.numerics,
            self.seconds / 2,
            self._runners,
            **self._limits,
        )
        self._cases.keep_cases_of_parts(cases)
        if self._empty and refusal is None:
            skipped.append(Skipped("dims of size 0", "memory", "parts run on sizes of at least 1"))
        return Verdict(tuple(rows), skipped=tuple(skipped), unverifiable=refusal)

    def _compare_loading(self, request: ComparisonRequest) -> tuple[Row, ...]:
        """Compare models by loading alone, because the original runs on no inputs."""
        return tuple(
            replace(row, libraries=choice is not None)
            for choice in self._choices(request)
            for row in load_failures(
                self._original, self._runners.candidate(request.artifact.source, request.model, choice)
            )
        )

    def _compare_runs(self, request: ComparisonRequest, cases: Cases) -> Verdict:
        """Compare models on all ``cases``, and on further ones unless the rewrites are proven exact."""
        is_proven, rows = request.is_proven, list[Row]()
        if not is_proven:
            self._cases.add_further()
        for choice in self._choices(request):
            comparison = self._comparison(request, choice, cases)
            known = len(cases.found)
            found = comparison.rows(cases_like(cases.found, request.like))
            if is_proven:
                found += comparison.rows(self._cases.sampled())
                is_proven = agree_in_every_bit(found)
                if not is_proven:
                    self._cases.add_further()
                    compared = {row.identity for row in found}
                    further = comparison.rows(cases.found[known:])
                    found += [row for row in further if row.identity not in compared]
            if self._empty and (request.like is None or not found):
                found += self._empty_rows(request, choice, comparison)
            rows += [replace(row, libraries=choice is not None) for row in found]
        skipped = [
            one
            for gathered in self._cases.known
            for one in gathered.skipped
            if one.distribution != "huge" or request.numerics is Numerics.EXACT
        ]
        if is_proven and self._cases.has_further:
            skipped.append(Skipped("other kinds of values", PROVEN_EXACT, "every rewrite preserves all bits"))
        unverifiable = None if rows else f"{ORIGINAL_FAILS} in repeated runs"
        return Verdict(tuple(rows), skipped=tuple(skipped), unverifiable=unverifiable)

    def _choices(self, request: ComparisonRequest) -> list[SessionChoice | None]:
        """The session options of the candidate: without, and with its libraries."""
        if not request.libraries:
            return [None]
        return [None, SessionChoice(libraries=request.libraries, cpu_level=self._cpu_level)]

    def _comparison(
        self, request: ComparisonRequest, choice: SessionChoice | None, cases: Cases
    ) -> CandidateComparison:
        """The comparison of a candidate, under the session options ``choice``, on ``cases``."""
        return CandidateComparison(
            [port.name for port in self._signature.outputs],
            self._runners.candidate(request.artifact.source, request.model, choice),
            request.numerics,
            self._output_traits,
            self._rounding,
            self._original,
            (self._reference, request.reference),
            bits=request.bits,
            draws_random=self._random.draws,
            not_random=self._random.indices and self._random.indices - randomness_of(request.model).indices,
            empties=self._empties,
            perturbed=self._perturb,
            unreliable=self._unreliable_in,
            unsteady=partial(self._unsteady_in, cases, self._original),
        )

    def _empty_rows(
        self, request: ComparisonRequest, choice: SessionChoice | None, comparison: CandidateComparison
    ) -> list[Row]:
        """The rows of the cases with dims of size 0, by the settings of ``comparison``."""
        empty, runs = self._cases.empty(), comparison.candidate
        if isinstance(runs, Runs):
            runs = self._runners.candidate(request.artifact.source, request.model, choice, empty=True)
        unsteady = partial(self._unsteady_in, empty, self._cases.empty_original())
        comparison = replace(comparison, candidate=runs, original=None, unsteady=unsteady)
        return comparison.rows(cases_like(empty.found, request.like))

    def _unreliable_in(self, case: Case) -> Unreliable:
        """Outputs that onnxruntime computes wrongly in ``case`` because of empty tensors, cached."""
        if case.unreliable is None:
            may = self._small and (case.empty or self._empties or self._empty_tensors.data_dependent)
            case.unreliable = self._empty_tensors.unreliable(case.feeds) if may else Unreliable()
        return case.unreliable

    def _unsteady_in(self, cases: Cases, original: Runner, case: Case) -> bool:
        """Whether outputs change from run to run, although no operator draws random numbers."""
        return not self._random.draws and find_unsteady_outputs(case, cases, original)
