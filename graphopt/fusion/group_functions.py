"""Groups in a model: functions, named by a digest of their contents, and their kernels."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.errors import InvalidModel
from graphopt.fusion.group_signature import Signature
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.lower_group import lower
from graphopt.fusion.operator_table import only_moves
from graphopt.fusion.template_kernel import NativeKernel
from graphopt.ops import graphopt_operators
from graphopt.util.lazy_dataclass import dataclass

#: Key in ``function.graph.meta``: the kernel, valid only if its name is the name of the function.
_KERNEL = "graphopt.kernel"
#: Version of the semantics of kernels, a part of their names.
_FORMAT = 1
_DIGITS = 12
#: Maximum number of operators in the name of a group, and maximum length of this part of the name, in
#: characters.
_WORDS = 3
_LETTERS = 60


@dataclass(frozen=True)
class Group:
    """A function that is a group.

    Attributes:
        signature: its types; ``None`` if the model does not record them.
        kernel: its kernel, if any.
        reason: the reason why it has no kernel.
    """

    function: ir.Function
    signature: Signature | None
    kernel: NativeKernel | None
    reason: str = ""
    calls: int = 0

    @property
    def name(self) -> str:
        """The name of the function, and of the kernel."""
        return self.function.name


def groups_of(model: ir.Model) -> list[Group]:
    """The groups in ``model``, in the order of their names.

    Raises:
        InvalidModel: the signatures are malformed.
    """
    signatures = signatures_of(model)
    calls: dict[str, int] = {}
    for graph in ir.graphs_of(model):
        for node in graph:
            if node.domain == graphopt_operators.NATIVE_DOMAIN:
                calls[node.op_type] = calls.get(node.op_type, 0) + 1
    functions = [
        function for key, function in model.functions.items() if key[0] == graphopt_operators.NATIVE_DOMAIN
    ]
    return [
        _group(function, signatures.get(function.name), calls.get(function.name, 0))
        for function in sorted(functions, key=lambda function: function.name)
    ]


def _group(function: ir.Function, signature: Signature | None, calls: int) -> Group:
    if signature is None:
        return Group(function, None, None, "the model has no types for it", calls)
    if function.name != name_of(function, signature):  # names are printed in the source of kernels
        return Group(function, signature, None, "its contents do not match its name", calls)
    try:
        return Group(function, signature, kernel_of(function, signature), calls=calls)
    except CantFuse as reason:
        return Group(function, signature, None, str(reason), calls)
    except Exception as fault:  # nodes may violate the schemas of their operators
        return Group(function, signature, None, f"its nodes are invalid: {type(fault).__name__}", calls)


def kernels_of(model: ir.Model) -> list[NativeKernel]:
    """The kernels of the groups in ``model``."""
    return [group.kernel for group in groups_of(model) if group.kernel is not None]


def signatures_of(model: ir.Model) -> dict[str, Signature]:
    """The signatures of groups, by name; raises InvalidModel if they are malformed."""
    text = model.metadata_props.get(graphopt_operators.KERNEL_SIGNATURES)
    if text is None:
        return {}
    try:
        data = json.loads(text)
        items = list(data.items())
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidModel(
            f"the model's entry {graphopt_operators.KERNEL_SIGNATURES!r} can't be read"
        ) from error
    return {name: Signature.parse(item) for name, item in items}


def note_signatures(model: ir.Model, signatures: Mapping[str, Signature], cx: Context) -> None:
    """Store the signatures of the groups in ``model`` in its metadata, without removed functions."""
    names = [key[1] for key in model.functions if key[0] == graphopt_operators.NATIVE_DOMAIN]
    data = {name: signatures[name].to_dict() for name in sorted(names) if name in signatures}
    cx.edit.note(
        model, graphopt_operators.KERNEL_SIGNATURES, json.dumps(data, separators=(",", ":")) if data else None
    )


def add_groups(model: ir.Model, others: Iterable[ir.Model]) -> None:
    """Add copies of the groups of ``others`` to ``model``; groups with the same name have equal contents."""
    signatures = signatures_of(model)
    for other in others:
        for key, function in other.functions.items():
            if key[0] == graphopt_operators.NATIVE_DOMAIN and key not in model.functions:
                model.functions[key] = ir.clone_function(function)
        signatures = signatures_of(other) | signatures
    with context_for(model) as cx:
        note_signatures(model, signatures, cx)


def name_of(function: ir.Function, signature: Signature) -> str:
    """The name of a group: its first operators, and a digest of its contents."""
    ops = [node.op_type for node in function.graph if node.op_type != "Constant" and not only_moves(node)]
    words = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op).lower() for op in dict.fromkeys(ops)]
    label = re.sub(r"[^a-z0-9_]", "_", "_".join(words[:_WORDS]))[:_LETTERS] or "moves"
    label = label if label[0].isalpha() else f"k{label}"
    return f"{label}_{digest(function, signature)}"


def digest(function: ir.Function, signature: Signature) -> str:
    """A digest of the contents and types of a group."""
    parts = (str(_FORMAT), ir.fingerprint(function), json.dumps(signature.to_dict()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]


def kernel_of(function: ir.Function, signature: Signature) -> NativeKernel:
    """The kernel of a group, lowered at the first call; raises CantFuse if the group has no kernel."""
    noted = function.graph.meta.get(_KERNEL)
    if noted is None or noted.name != function.name:  # the name is a digest of the contents
        nodes, imports = list(function.graph), function.opset_imports
        noted = lower_nodes(nodes, function.inputs, function.outputs, imports, signature, function.name)
        function.graph.meta[_KERNEL] = noted
    return noted


def note_kernel(function: ir.Function, kernel: NativeKernel) -> None:
    """Record that ``kernel`` is the kernel of ``function``, so that it is not lowered again."""
    function.graph.meta[_KERNEL] = replace(kernel, name=function.name)


def lower_nodes(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    imports: Mapping[str, int],
    signature: Signature,
    name: str,
) -> NativeKernel:
    """The kernel that computes ``outputs`` from ``inputs`` by ``nodes``, which are not modified.

    Raises:
        CantFuse: the nodes have no kernel.
    """
    if len(signature.inputs) != len(inputs) or len(signature.outputs) != len(outputs):
        raise CantFuse("its number of inputs or outputs differs from its types")
    copier = ir.Cloner(declarations=False)
    copied = []
    for number, (value, tensor) in enumerate(zip(inputs, signature.inputs, strict=True)):
        kind = ir.TensorType(ir.DataType(tensor.element.value))
        copied.append(ir.Value(name=value.name or f"input_{number}", type=kind))
        copier.values[value] = copied[-1]
    copies = [*_constants(nodes, copier), *copier.nodes(nodes)]
    results = [result for value in outputs if (result := copier.value(value)) is not None]
    graph = ir.Graph(copied, results, nodes=copies, opset_imports=dict(imports), name=name)
    with context_for(ir.Model(graph, ir_version=10)) as cx:
        for value, tensor in zip(copied, signature.inputs, strict=True):
            cx.facts.set(value, tensor.fact)
        return lower(graph, cx, name)


def _constants(nodes: Sequence[ir.Node], copier: ir.Cloner) -> Iterator[ir.Node]:
    """Constants that ``nodes`` read from outside, as Constant nodes."""
    defined = {output for node in nodes for output in node.outputs}
    for value in dict.fromkeys(value for node in nodes for value in ir.reads(node)):
        tensor = ir.constant_of(value)
        if tensor is None or value in defined or value in copier.values:
            continue
        node = ir.Node("", "Constant", [], [ir.Attr("value", ir.AttributeType.TENSOR, tensor)])
        copier.values[value] = node.outputs[0]
        node.outputs[0].name = value.name
        yield node
