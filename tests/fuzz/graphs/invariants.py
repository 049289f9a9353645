"""Invariants of every optimized model."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import onnx

from graphopt import ir
from graphopt.config import Settings
from graphopt.errors import GraphoptError
from graphopt.make_pass_options import make_options
from graphopt.optimization_attempt import Attempt
from graphopt.passes.pipelines import make_pipeline
from graphopt.process.child import Child
from graphopt.verification.verifier import Verifier


@dataclass(frozen=True)
class Plan:
    """A pipeline with its options.

    Attributes:
        pipeline: as text.
        exact: with ``--exact``.
        preset: whether it is one of graphopt's presets, which never add nodes and should be idempotent.
    """

    pipeline: str
    exact: bool = False
    preset: bool = True

    def __str__(self) -> str:
        return self.pipeline + (" --exact" if self.exact else "")


#: Passes outside of presets, which run before a preset.
EXTRAS = (
    "unroll-loops",
    "views-to-reshape",
    "decompose",
    "remove-expands",
    "lower-sequences",
    "add-if-then-else",
    "inline-functions",
    "remove-sequence-mutation",
)


def plans(random: Random) -> list[Plan]:
    """The default, and another one."""
    match random.randrange(4):
        case 0:
            other = Plan("O1", exact=True)
        case 1:
            other = Plan("O2", exact=True)
        case 2:
            other = Plan("O3")
        case _:
            extras = random.sample(EXTRAS, random.randint(1, 3))
            other = Plan(",".join([*extras, "O2"]), preset=False)
    return [Plan("O2"), other]


@dataclass(frozen=True)
class Finding:
    """A violated invariant.

    Attributes:
        kind: ``error``, ``invalid``, ``mismatch``, ``grew``, ``nondeterministic`` or ``unstable``.
    """

    kind: str
    plan: str
    detail: str

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault, as opposed to changes by a second optimization."""
        return self.kind != "unstable"

    def __str__(self) -> str:
        return f"{self.kind} under {self.plan}: {self.detail}"


def examine(
    proto: onnx.ModelProto, ways: list[Plan], child: Child | None = None, *, isolate: bool = False
) -> list[Finding] | None:
    """The invariants that ``proto`` violates under these plans; each run may be isolated in a child.

    ``None`` if onnxruntime does not run ``proto`` itself.
    """
    data = proto.SerializeToString()
    try:
        original = _read(data)
    except GraphoptError as error:
        return [Finding("error", "load", str(error))]
    found: list[Finding] = []
    with Verifier(original, threads=1, isolate=isolate) as verifier:
        for plan in ways:
            judged = _examine(data, plan, verifier, _is_valid(proto))
            if judged is None:
                return None
            found += judged
    return found


def _examine(data: bytes, plan: Plan, verifier: Verifier, valid: bool) -> list[Finding] | None:
    def finding(kind: str, detail: str) -> list[Finding]:
        return [Finding(kind, str(plan), detail)]

    before = _read(data)
    try:
        after = optimized(before, plan)
        result = ir.to_bytes(after)
    except Exception as error:  # exceptions of passes are findings
        return finding("error", f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
    verdict = verifier.verify(_read(result), numerics=make_options(_settings(plan)).numerics)
    if verdict.unverifiable is not None:
        return None
    if not verdict.ok:
        return finding("mismatch", verdict.summary())
    if valid and not _is_valid(onnx.ModelProto.FromString(result)):
        return finding("invalid", "onnx.checker accepts the original, but not the result")
    if ir.to_bytes(optimized(_read(data), plan)) != result:
        return finding("nondeterministic", "a second run gives other bytes")
    if plan.preset:
        if count_nodes(after) > count_nodes(before):
            return finding("grew", f"{count_nodes(before)} nodes became {count_nodes(after)}")
        again = optimized(_read(result), plan)
        if ir.to_bytes(again) != result:
            return finding(
                "unstable", f"{count_nodes(after)} nodes become {count_nodes(again)} when run again"
            )
    return []


def optimized(model: ir.Model, plan: Plan) -> ir.Model:
    """A copy of ``model`` after ``plan``, its structure checked after each pass; nothing is repaired."""
    copy = ir.from_proto(ir.to_proto(model))
    Attempt(make_pipeline(plan.pipeline), make_options(_settings(plan)), validate_each=True).run(copy)
    return copy


def _settings(plan: Plan) -> Settings:
    return Settings(exact=plan.exact)


def _read(data: bytes) -> ir.Model:
    return ir.from_proto(onnx.ModelProto.FromString(data))


def _is_valid(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def count_nodes(model: ir.Model) -> int:
    """Nodes of the graph, of bodies and functions; constants are not counted."""
    return sum(node.op_type != "Constant" for graph in ir.graphs_of(model) for node in graph)
