"""Cases with dynamic dims of size 0."""

from __future__ import annotations

from graphopt.errors import ResourceLimit, SystemExhausted
from graphopt.inputs.binding_search import ValidBinding
from graphopt.inputs.feeds import Inputs
from graphopt.ort.model_runs import Runner
from graphopt.process.child import ProcessCrashed
from graphopt.verification.case import Cases
from graphopt.verification.case_gatherer import QUICK
from graphopt.verification.case_maker import CaseMaker
from graphopt.verification.verdict import Skipped


def empty_cases(inputs: Inputs, original: Runner, known: Cases, *, random: bool) -> Cases:
    """Cases with a dynamic dim of size 0 that ``original`` (in a child) accepts, like those of ``known``."""
    cases = Cases()
    if not known.valid:
        return cases
    base = known.valid[-1]
    original.seconds = QUICK
    maker = CaseMaker(inputs, original, random)
    for binding in inputs.bindings(inputs.dimensions.empty(base.binding)):
        if 0 in binding.values():
            one = ValidBinding(binding, base.restriction)
            failure = maker.add_to(cases, one, "normal", default=not known.is_single)
            if isinstance(failure, SystemExhausted):
                cases.skipped.append(Skipped("more dims of size 0", "memory", str(failure)))
                break
            if isinstance(failure, ProcessCrashed | ResourceLimit):
                crashed = isinstance(failure, ProcessCrashed)
                cause = "a crash of the original" if crashed else "a limit on time or memory"
                cases.skipped.append(Skipped("more dims of size 0", cause, str(failure)))
                break
    for case in cases.found:
        case.empty = True
    return cases
