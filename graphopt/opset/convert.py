"""Convert single nodes to other opset versions of ai.onnx, if necessary by onnx's version converter.

The converter processes whole models and loses parts of them: functions, contents of bodies, names, and types
that it does not support. Therefore the converter receives only models of one node, whose operator changes in
more than its supported types.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
import onnx.defs

from graphopt import ir
from graphopt.errors import UnsupportedModel
from graphopt.opset.upgrade import ADAPTERS
from graphopt.util.lazy_dataclass import dataclass

_Option = onnx.defs.OpSchema.FormalParameterOption

#: The newest ai.onnx opset of the installed onnx.
NEWEST = int(onnx.defs.onnx_opset_version())


def convert(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """A model of few nodes at opset ``target`` of ai.onnx, its only import.

    A conversion costs milliseconds, and layers of a model are often equal. Equal models are converted once.

    Raises:
        UnsupportedModel: a step has no adapter, or the adapter rejects the model.
    """
    return onnx.ModelProto.FromString(_converted(model.SerializeToString(deterministic=True), target))


@lru_cache(maxsize=1024)
def _converted(data: bytes, target: int) -> bytes:
    model = onnx.ModelProto.FromString(data)
    while (version := model.opset_import[0].version) != target:
        following = version + (1 if target > version else -1)
        changed = [node for node in model.graph.node if changes(node.op_type, version, following)]
        if all(same_form(node.op_type, version, following) for node in changed):
            model.opset_import[0].version = following
        else:
            model = _after_version_step(model, following, changed)
    return model.SerializeToString()


def changes(op_type: str, version: int, other: int) -> bool:
    """Whether the operator has a new definition between two opset versions."""
    before, after = ir.operator_schema("", op_type, version), ir.operator_schema("", op_type, other)
    if before is None or after is None:
        return before is not after
    return before.since_version != after.since_version


def is_function(op_type: str, version: int) -> bool:
    """Whether the standard defines the operator as a function, so that runtimes need no kernel for it."""
    found: Any = ir.operator_schema("", op_type, version)
    return found is None or found.has_function or found.has_context_dependent_function


@lru_cache(maxsize=8192)
def same_form(op_type: str, version: int, other: int) -> bool:
    """Whether a node has equal semantics in both versions: equal attributes, defaults, inputs and outputs."""
    steps = range(min(version, other), max(version, other) + 1)
    if any(step in ADAPTERS for step in _steps(op_type, version, other)):
        return False  # equal definitions may still differ in meaning
    found = [ir.operator_schema("", op_type, step) for step in steps]
    if version < other:  # before its first ONNX version, the operator is an extension of the runtime
        found = list(itertools.dropwhile(lambda definition: definition is None, found)) or found
    if any(definition is None or definition.deprecated for definition in found):
        return not any(found)  # the runtime defines operators that ONNX lacks
    forms = [_form(definition) for definition in found if definition is not None]
    return all(form == forms[0] for form in forms)


def keeps_semantics(op_type: str, version: int, newer: int) -> bool:
    """Whether a node has the same semantics in a newer version, which may add attributes and inputs."""
    if newer < version:
        return same_form(op_type, version, newer)
    if any(step in ADAPTERS for step in _steps(op_type, version, newer)):
        return False
    old, new = (ir.operator_schema("", op_type, step) for step in (version, newer))
    if old is None or new is None or new.deprecated:
        return False
    (attributes, *operands), (more, *others) = _form(old), _form(new)
    added = [item for item in more if item not in attributes]
    return (
        all(item in more for item in attributes)
        and not any(required for _, _, required, _ in added)
        and all(mine == theirs[: len(mine)] for mine, theirs in zip(operands, others, strict=True))
    )


def _steps(op_type: str, version: int, other: int) -> Iterator[tuple[str, int, int]]:
    """The keys of adapters between the versions."""
    step = 1 if other > version else -1
    return ((op_type, at, at + step) for at in range(version, other, step))


def _form(definition: onnx.defs.OpSchema) -> tuple[list[Any], list[Any], list[Any]]:
    attributes = sorted(
        (name, str(item.type), item.required, item.default_value.SerializeToString())
        for name, item in definition.attributes.items()
    )
    inputs = [(item.option, item.is_homogeneous) for item in definition.inputs]
    outputs = [(item.option, item.is_homogeneous) for item in definition.outputs]
    return attributes, inputs, outputs


def obstacle(node: onnx.NodeProto, types: Mapping[str, str | None], source: int, target: int) -> str | None:
    """The reason why ``node`` is invalid in opset ``target``, by the definition of its operator, or ``None``.

    Args:
        node: the node in opset ``target``.
        types: the known types by the name of the value, in the notation of schemas (``tensor(float)``).
        source: the original version; parts that also violate the definition of this version are accepted.
    """
    before, after = ir.operator_schema("", node.op_type, source), ir.operator_schema("", node.op_type, target)
    if after is None or after.deprecated:
        return None if after is before else f"opset {target} has no {node.op_type}"
    for attribute in node.attribute:
        if attribute.name not in after.attributes and (before is None or attribute.name in before.attributes):
            return f"{node.op_type} has no attribute {attribute.name!r} in opset {target}"
    for verb, kind, names, parameters in (
        ("takes", "input", node.input, _inputs),
        ("gives", "output", node.output, _outputs),
    ):
        new, old = parameters(after), None if before is None else parameters(before)
        if not new.count(names) and (old is None or old.count(names)):
            return f"{node.op_type} can't have {len(names)} {kind}s in opset {target}"
        for index, name in enumerate(names):
            if not (name or new.may_lack(index)) and (old is None or old.may_lack(index)):
                return f"{node.op_type} can't leave out {kind} {index} in opset {target}"
            type_ = types.get(name)
            if not (type_ is None or new.accepts(index, type_)) and (
                old is None or old.accepts(index, type_)
            ):
                return f"{node.op_type} {verb} no {type_} in opset {target}"
    return None


@dataclass(frozen=True)
class _Parameters:
    """The inputs or outputs of an operator's definition, and the limits of their number."""

    items: Sequence[onnx.defs.OpSchema.FormalParameter]
    least: int
    most: int

    def count(self, names: Sequence[str]) -> bool:
        """Whether a node may have ``names``; trailing ones may be omitted."""
        count = max((index + 1 for index, name in enumerate(names) if name), default=0)
        return self.least <= len(names) and count <= self.most

    def may_lack(self, index: int) -> bool:
        """Whether the parameter at ``index`` may be omitted although others follow."""
        return index >= len(self.items) or self.items[index].option != _Option.Single

    def accepts(self, index: int, type_: str) -> bool:
        """Whether the parameter at ``index`` may have this type."""
        if index < len(self.items):
            return type_ in self.items[index].types
        variadic = self.items and self.items[-1].option == _Option.Variadic
        return bool(variadic and type_ in self.items[-1].types)


def _inputs(definition: onnx.defs.OpSchema) -> _Parameters:
    return _Parameters(definition.inputs, definition.min_input, definition.max_input)


def _outputs(definition: onnx.defs.OpSchema) -> _Parameters:
    return _Parameters(definition.outputs, definition.min_output, definition.max_output)


def _after_version_step(
    model: onnx.ModelProto, following: int, changed: list[onnx.NodeProto]
) -> onnx.ModelProto:
    """``model`` after one version step of onnx's converter."""
    from onnx import shape_inference, version_converter

    refusals = (RuntimeError, version_converter.ConvertError, shape_inference.InferenceError)
    version = model.opset_import[0].version
    ops = ", ".join(dict.fromkeys(node.op_type for node in changed))
    for node in changed:
        adapt = ADAPTERS.get((node.op_type, version, following))
        if adapt is not None:
            return adapt(model, node)
        if following < version and ir.operator_schema("", node.op_type, following) is None:
            raise UnsupportedModel(f"{node.op_type} came with opset {version}")
    try:
        return version_converter.convert_version(model, following)
    except refusals as error:  # the converter asserts its preconditions
        if "No Adapter" in str(error) and all(_means_the_same(node, version, following) for node in changed):
            model.opset_import[0].version = following
            return model
        raise UnsupportedModel(
            f"{ops} can't go from opset {version} to {following}: {_reason(str(error))}"
        ) from error


def _means_the_same(node: onnx.NodeProto, version: int, following: int) -> bool:
    """Whether ``node`` is valid in the older version; attributes with default values are removed."""
    before, after = (ir.operator_schema("", node.op_type, opset) for opset in (version, following))
    if before is None or after is None or not after.min_input <= len(node.input) <= after.max_input:
        return False
    kept = []
    for attribute in node.attribute:
        definition = before.attributes.get(attribute.name)
        if attribute.name in after.attributes or definition is None:
            kept.append(attribute)
        elif attribute != definition.default_value:
            return False
    given = {attribute.name for attribute in kept}
    for name, definition in after.attributes.items():
        known = before.attributes.get(name)
        if name not in given and (known is None or known.default_value != definition.default_value):
            return False
    del node.attribute[:]
    node.attribute.extend(kept)
    return True


def _reason(message: str) -> str:
    """The informative part of an error of onnx's version converter."""
    if "No Adapter" in message:
        return "onnx's converter has no adapter for it"
    match = re.search(r"Assertion `.*?` failed: (.*)", message, re.S)
    return " ".join((match[1] if match and match[1].strip() else message).split())[-200:]
