"""A general model and its specialized variants, each optimized by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.errors import GraphoptError, UsageError, unknown
from graphopt.instrument.report import Report
from graphopt.instrument.variants import VariantReport
from graphopt.profile import Behaviour, FusionStrategy, Profile, Variant, variants_of
from graphopt.runtime.signature import Port, Signature
from graphopt.specialize.emit_model import Branch
from graphopt.specialize.guard_nodes import GuardNodes
from graphopt.specialize.narrow import narrowed
from graphopt.specialize.plan import Planned
from graphopt.specialize.sharing import share_weights
from graphopt.specialize.worth import too_little

#: Passes that a variant runs first: what is known of its inputs opens functions and loops.
FIRST = ("inline-functions", "unroll-loops")
#: How many variants one model holds: each has weights of its own in memory.
MODEL_LIMITS: Mapping[Behaviour, int] = {Behaviour.STATIC: 2, Behaviour.DYNAMIC: 1}

#: Optimizes a model, running the named passes before all others.
Optimize = Callable[[ir.Model, tuple[str, ...]], tuple[ir.Model, Report]]


@dataclass(frozen=True)
class Specialization:
    """How to specialize a model.

    Attributes:
        profile: what was seen in runs of it.
        strategy: how many variants are called for, and how closely each keeps to what was seen.
        most: make no more than that.
        single_file: of one model: all weights in the file itself, and read from outside of the branches.
        pins: of one model: variants tell onnxruntime the sizes of their inputs, by a Reshape of each.
    """

    profile: Profile
    strategy: FusionStrategy = field(default_factory=FusionStrategy)
    most: int | None = None
    single_file: bool = False
    pins: bool = False


@dataclass(frozen=True)
class Specialized:
    """A model and its variants.

    Attributes:
        general: right for all inputs.
        branches: right where their guards hold, in the order in which they are to be asked.
        plan: what there is to tell of each branch.
        report: about ``general``, and about all variants.
        original: fingerprint of the model that all were made of.
        model: all in one; ``None`` if they are for a bundle.
    """

    general: ir.Model
    branches: list[Branch]
    plan: list[Planned]
    report: Report
    original: str
    model: ir.Model | None = None


def build(
    original: ir.Model,
    how: Specialization,
    optimize: Optimize,
    *,
    limits: Mapping[Behaviour, int] | None = None,
    keep: bool = False,
    strict: bool = False,
) -> Specialized:
    """Optimize ``original`` as it is, and once for each variant that its profile calls for.

    Args:
        limits: of variants by behaviour.
        keep: keep variants that are hardly smaller than the general model, too.
        strict: a variant that fails is an error; by default it is left out.

    Raises:
        UsageError: the profile is of another model.
    """
    if how.profile.model != ir.fingerprint(original, names=True):
        raise UsageError("the profile is of another model", hint="graphopt profile makes one of this model")
    _check_types(how.profile, Signature.of(original))
    general, report = optimize(original, ())
    optional = [port.name for port in Signature.of(original).inputs if port.role == "overridable"]
    variants = variants_of(
        how.profile, how.strategy, most=how.most, limits=limits, optional=optional if keep else ()
    )
    branches, plan = [], []
    before = _nodes(general)
    for variant in variants:
        try:
            model, told = optimize(narrowed(original, variant.guard), FIRST)
        except GraphoptError as failure:
            if strict:
                raise
            report.variants.append(VariantReport(variant, 0, before, str(failure)))
            continue
        reason = _the_same(general, model, variant) if keep else _too_little(general, model, variant)
        nodes = _nodes(model)
        dropped = tuple(map(str, told.dropped))
        report.variants.append(VariantReport(variant, nodes, before, reason, dropped))
        if reason is None:
            pins = frozenset(variant.guard.inputs) if how.pins else frozenset()
            branches.append(Branch(variant.name, variant.guard, model, pins))
            plan.append(Planned(variant.name, variant.guard, variant.runs, nodes))
    report.profiled_runs = how.profile.runs
    share_weights([general, *(branch.model for branch in branches)])
    return Specialized(general, branches, plan, report, how.profile.model)


def _too_little(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """Why a variant is not worth a guard in one model."""
    inputs = {value.name or "": value for value in general.graph.inputs}
    if not GuardNodes(ir.Editor(general), general.graph, inputs).asks(variant.guard):
        return "its guard would hold for all inputs"
    return too_little(general, model, variant.guard)


def _the_same(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """Why not even a bundle needs a variant: only known sizes make a difference to an equal graph."""
    if variant.behaviour is Behaviour.STATIC or ir.fingerprint(model) != ir.fingerprint(general):
        return None
    return "it would be the general model again"


def _nodes(model: ir.Model) -> int:
    """How many nodes there are, in functions too."""
    return sum(map(ir.count_nodes, (model.graph, *(function.graph for function in model.functions.values()))))


def _check_types(profile: Profile, signature: Signature) -> None:
    """Check that ``profile`` speaks of inputs as they are declared; people may have written it.

    Raises:
        UsageError: it names an input that there is not, or tells another type, number of dims or size.
    """
    ports = {port.name: port for port in signature.inputs}
    for pattern in profile.patterns:
        for name, seen in pattern.inputs.items():
            port = ports.get(name)
            if port is None:
                raise unknown("input", name, ports, f"inputs: {', '.join(ports)}")
            fits = seen.shape is None or port.dims == () or port.takes(seen.shape)  # scalars may be anything
            if seen.type != port.type or not fits:
                raise UsageError(
                    f"the profile says that input {name!r} is {seen}, the model says {_declared(port)}"
                )


def _declared(port: Port) -> str:
    dims = port.dims and ", ".join("?" if dim is None else str(dim) for dim in port.dims)
    return f"{port.type}[{dims}]" if dims else port.type
