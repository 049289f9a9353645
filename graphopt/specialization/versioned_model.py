"""Function multiversioning: one portable model ``If(guard) { specialized } else { general }``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from graphopt import ir
from graphopt.errors import UnsupportedModel, VerificationFailed
from graphopt.fusion.kernel_library import Libraries
from graphopt.inputs.feeds import InputOptions
from graphopt.numerics import Numerics
from graphopt.profile import Profile, Variant
from graphopt.profile.guard_nodes import GuardNodes
from graphopt.specialization.branch_functions import add_functions
from graphopt.specialization.build_variants import Specialization, Specialized
from graphopt.specialization.empty_model import empty_like
from graphopt.specialization.shared_initializers import lift_shared_initializers
from graphopt.specialization.specialize_inputs import profiled_inputs
from graphopt.specialization.variant_branch import Branch
from graphopt.specialization.variant_records import read_variants, record_variants
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.verdict import Verdict
from graphopt.verification.verifier import Verifier


def build_versioned_model(general: ir.Model, branches: Sequence[Branch]) -> ir.Model:
    """A model that runs the first of ``branches`` whose guard holds, and ``general`` otherwise.

    The model has the signature of ``general``. Branches contain their own initializers, which share tensors:
    external data contains each once.

    Raises:
        UnsupportedModel: see :func:`obstacle`.
    """
    reason = obstacle(general, branches)
    if reason is not None:
        raise UnsupportedModel(
            f"the variants can't be combined in one model: {reason}", hint="--emit bundle supports them"
        )
    model = empty_like(general)
    branches = add_functions(model, branches)
    edit = ir.Editor(model)
    edit.raise_ir_version(max(model.ir_version, *(branch.model.ir_version for branch in branches)))
    for output in dict.fromkeys(model.graph.outputs):  # reserve the names of outputs
        if not output.is_graph_input():
            edit.fresh_name(output.name or "")
    inputs = {value.name or "": value for value in model.graph.inputs}
    computed = _computed_outputs(general)
    guards = GuardNodes(edit, model.graph, inputs)
    guards.prepare([branch.guard for branch in branches])
    graph = model.graph
    for branch in branches:
        condition = guards.condition(branch.guard, graph)
        if condition is None:
            raise UnsupportedModel(f"the guard of {branch.name} always holds")
        suffix = f"_{branch.name.replace('-', '_')}"
        then = _body(edit, branch.model, inputs, computed, suffix=suffix)
        if branch is branches[-1]:
            other = _body(edit, general, inputs, computed, suffix="")
        else:
            other = ir.Graph([], [], nodes=[], name=f"not_{branch.name}")
        node = edit.make_node(
            "If",
            [condition],
            {"then_branch": then, "else_branch": other},
            outputs=len(computed),
            name=f"guarded_{branch.name}",
        )
        edit.append(graph, node)
        _set_results(edit, model.graph, graph, node, computed)
        _pin(edit, then, branch, inputs)
        _import(model, branch.model)
        graph = other
    ir.sort_model(model)
    return model


def obstacle(general: ir.Model, branches: Sequence[Branch]) -> str | None:
    """The reason why the models can't be combined in one; ``None`` if they can."""
    if general.ir_version < 4:
        return f"IR version {general.ir_version} has no initializers in branches"
    version = ir.standard_version(general.opset_imports)
    if version < 11:
        return f"opset {version} lacks the operators that guards need"
    for value in general.graph.outputs:
        if not isinstance(value.type, ir.TensorType) and version < 16:
            return f"output {value.name!r} is not a tensor, which an If can return from opset 16 only"
    for branch in branches:
        if branch.guard.absent:
            return (
                f"{branch.name} assumes that {branch.guard.absent[0]!r} is not fed, which nodes can't detect"
            )
    return None


def _computed_outputs(general: ir.Model) -> list[int]:
    """Indices of the outputs that branches compute, without inputs and repetitions."""
    outputs = general.graph.outputs
    return [
        index
        for index, value in enumerate(outputs)
        if not value.is_graph_input() and value not in outputs[:index]
    ]


def _body(
    edit: ir.Editor, model: ir.Model, inputs: dict[str, ir.Value], computed: list[int], *, suffix: str
) -> ir.Graph:
    """``model`` as a body that captures ``inputs`` and returns the outputs ``computed``."""
    copier = ir.Cloner(
        {value: inputs[value.name or ""] for value in model.graph.inputs},
        value_name=lambda name: edit.fresh_name(f"{name}{suffix}"),
        node_name=lambda name: edit.fresh_node_name(f"{name}{suffix}"),
    )
    body = copier.body(model.graph, [model.graph.outputs[index] for index in computed])
    outputs: list[ir.Value] = []
    for value in body.outputs:
        if value.producer() is None or value.graph is not body:
            identity = edit.make_node("Identity", [value], name=f"{value.name}_returned")
            identity.outputs[0].type = value.type
            edit.append(body, identity)
            value = identity.outputs[0]
        value.shape = None  # shapes may differ between branches; onnxruntime infers them
        outputs.append(value)
    edit.set_outputs(body, outputs)
    return body


def _pin(edit: ir.Editor, body: ir.Graph, branch: Branch, inputs: dict[str, ir.Value]) -> None:
    """Insert a Reshape to the assumed shape for each pinned input of ``branch``."""
    own = dict.fromkeys(body.all_nodes())
    first = next(iter(body), None)
    for name, value in inputs.items():
        expected = branch.guard.inputs.get(name)
        if name not in branch.pins or expected is None or expected.shape is None or first is None:
            continue
        users = [(node, index) for node, index in value.uses() if node in own]
        if not users:
            continue
        dims = np.array([dim if isinstance(dim, int) else 0 for dim in expected.shape], np.int64)
        shape = edit.constant(body, dims, f"{name}_sizes")
        pin = edit.make_node("Reshape", [value, shape], name=f"{name}_pinned")
        edit.insert_before(first, [pin])
        for node, index in users:
            edit.set_input(node, index, pin.outputs[0])


def _import(model: ir.Model, other: ir.Model) -> None:
    """Add the opset imports of ``other``."""
    for domain, version in other.opset_imports.items():
        model.opset_imports.setdefault(domain, version)


def _set_results(
    edit: ir.Editor, whole: ir.Graph, graph: ir.Graph, node: ir.Node, computed: list[int]
) -> None:
    """Make the outputs of ``node`` the outputs of ``graph``; the main graph keeps its output names."""
    if graph is not whole:
        edit.set_outputs(graph, node.outputs)
    outputs = list(whole.outputs)
    for index, output in zip(computed, node.outputs, strict=True):
        declared = outputs[index]
        output.type = declared.type
        if graph is not whole:
            continue
        edit.transfer_name(output, declared)
        for position, value in enumerate(outputs):
            if value is declared:
                edit.set_output(graph, position, output)


@dataclass(frozen=True)
class Checks:
    """The checks of a versioned model.

    Attributes:
        verifier: creates a verifier against the original for given inputs; ``None`` to skip verification.
        inputs: options for general inputs.
        numerics: the class of permitted rewrites.
        libraries: finds the native kernels of a model; the model is compared with and without them.
        buffers: checks that inputs and outputs may share buffers; raises VerificationFailed.
    """

    verifier: Callable[[InputOptions], Verifier] | None
    inputs: InputOptions
    numerics: Numerics
    libraries: Callable[[ir.Model], Libraries]
    buffers: Callable[[ir.Model], None]

    def verify(
        self, model: ir.Model, branches: Sequence[Branch], profile: Profile, libraries: Libraries
    ) -> Verdict | None:
        """Verify ``model`` on inputs for each guard, and on general inputs; returns the last verdict.

        Raises:
            VerificationFailed: the results differ.
        """
        if self.verifier is None:
            return None
        verdict = None
        given = [(branch.name, profiled_inputs(branch.guard, profile, self.inputs)) for branch in branches]
        for name, options in (*given, ("", self.inputs)):
            if options is None:
                continue
            with self.verifier(options) as verifier:
                verdict = verifier.verify(model, numerics=self.numerics, libraries=libraries.paths)
            if not verdict.ok:
                where = f" where the guard of {name} holds" if name else ""
                raise VerificationFailed(f"the model with variants differs{where}: {verdict.summary()}")
        return verdict


def versioned_model(found: Specialized, request: Specialization) -> ir.Model:
    """The versioned model of ``found``; the general model if there are no variants.

    Raises:
        UnsupportedModel: the variants can't be combined in one model.
    """
    if not found.branches:
        return found.general
    model = _with_branches(found.general, found.branches, request)
    ir.build_in(model, [found.general, *(branch.model for branch in found.branches)])
    record_variants(model, [*found.plan, *read_variants(found.general)])
    return model


def with_variant(general: ir.Model, model: ir.Model, variant: Variant, request: Specialization) -> ir.Model:
    """One model of ``general`` and the optimized ``model`` of ``variant``, in the requested form.

    Raises:
        UnsupportedModel: the models can't be combined.
    """
    return _with_branches(general, [request.branch(variant, model)], request)


def _with_branches(general: ir.Model, branches: Sequence[Branch], request: Specialization) -> ir.Model:
    model = build_versioned_model(general, branches)
    if request.single_file:
        lift_shared_initializers(model)
    return model


def checked_model(
    found: Specialized, request: Specialization, checks: Checks, *, strict: bool = False
) -> Specialized:
    """``found`` with its versioned model and the kernels of that model, after all ``checks``.

    If a check fails, the result contains only the general model, and the report has the reason.

    Raises:
        UnsupportedModel, VerificationFailed: with ``strict``, combining the models or a check failed.
    """
    report = found.report
    if not found.branches:
        return replace(found, model=found.general)
    try:
        model = versioned_model(found, request)
        checks.buffers(model)
        libraries = checks.libraries(model)
        verdict = checks.verify(model, found.branches, request.profile, libraries)
    except (UnsupportedModel, VerificationFailed) as failure:
        if strict:
            raise
        variants = [
            replace(variant, left_out=variant.left_out or failure.message) for variant in report.variants
        ]
        report = report.having(variants=variants)
        return replace(found, model=found.general, report=report, branches=[], plan=[])
    report = report.having(
        verdict=verdict or report.verdict,
        kernels=libraries.kernels,
        libraries=libraries.paths,
        remarks=[remark for remark in libraries.remarks if remark not in report.remarks],
    )
    return replace(found, model=model, report=report)
