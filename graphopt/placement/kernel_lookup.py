"""The kernel of a provider for a node, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from graphopt import ir
from graphopt.ort.operator_schemas import Schema, schema_of
from graphopt.ort.recorded_kernels import Kernel
from graphopt.ort.target import Target
from graphopt.placement.prediction import Cause
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Missing:
    """No kernel of a provider accepts the node.

    Attributes:
        cause: the first property of the node that no kernel has.
        reason: the explanation of the cause.
        remedy: a version or type with a kernel, if there is one.
    """

    cause: Cause
    reason: str
    remedy: str | None = None


@dataclass(frozen=True)
class Call:
    """The properties of a node that select its kernel.

    Attributes:
        op_type, domain: the operator.
        version: the opset version of the domain.
        inputs, outputs: types in onnxruntime's notation, such as ``tensor(float)``; ``None`` for an omitted
            argument, ``""`` for an unknown type.
    """

    op_type: str
    domain: str
    version: int
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]

    @property
    def schema(self) -> Schema | None:
        """onnxruntime's definition of the operator."""
        return schema_of(self.op_type, self.domain, self.version)


def find_kernel(target: Target, call: Call) -> Kernel | Missing:
    """The kernel with which the provider of ``target`` runs ``call``.

    The version must be in the kernel's range, and each type parameter must accept the type of the first
    present argument that it constrains (``KernelRegistry::TryFindKernel``). A kernel accepts unknown types.
    """
    schema, kernels = call.schema, target.kernels(call.op_type, call.domain)
    provider = target.device
    if schema is None or not kernels:
        return Missing(Cause.NO_OPERATOR, f"{provider} has no kernel of {call.op_type}")
    of_version = [kernel for kernel in kernels if kernel.since <= schema.since <= kernel.until]
    if not of_version:
        return Missing(
            Cause.NO_VERSION,
            f"{provider} has no kernel of {call.op_type} of version {schema.since}",
            _other_version(call, schema, kernels),
        )
    for kernel in of_version:
        if not any(_mismatches(kernel, schema, call)):
            return kernel
    return _of_other_types(target, call, schema, of_version)


def _mismatches(kernel: Kernel, schema: Schema, call: Call) -> Iterable[str]:
    """The type parameters for which ``kernel`` rejects the types of ``call``."""
    for parameter, accepted in kernel.types:
        found = schema.bound(parameter, call.inputs, call.outputs)
        if found and found not in accepted:
            yield parameter


def _other_version(call: Call, schema: Schema, kernels: Sequence[Kernel]) -> str | None:
    """The nearest version of the operator with a kernel for the types of ``call``, as a remedy."""
    if call.domain:
        return None
    fitting = [kernel for kernel in kernels if not any(_mismatches(kernel, schema, call))]
    newer = min((kernel.since for kernel in fitting if kernel.since > schema.since), default=None)
    if newer is not None:
        return f"--target-opset {newer}; its {call.op_type} has a kernel"
    older = max((kernel.until for kernel in fitting if kernel.until < schema.since), default=None)
    return None if older is None else f"export with opset {older}; its {call.op_type} has a kernel"


def _of_other_types(target: Target, call: Call, schema: Schema, kernels: Sequence[Kernel]) -> Missing:
    """The reason is that of the kernel that rejects the fewest types; of several, the last one."""

    def distance(kernel: Kernel) -> tuple[int, int]:
        rejected = list(_mismatches(kernel, schema, call))
        return len(rejected), -[name for name, _ in kernel.types].index(rejected[0])

    nearest = min(kernels, key=distance)
    parameter = next(iter(_mismatches(nearest, schema, call)))
    found = _plain(schema.bound(parameter, call.inputs, call.outputs) or "")
    alike = [kernel for kernel in kernels if set(_mismatches(kernel, schema, call)) <= {parameter}]
    accepted = {_plain(type) for kernel in alike or [nearest] for type in dict(kernel.types)[parameter]}
    name = _argument(schema, parameter)
    return Missing(
        Cause.NO_TYPE,
        f"{target.device} has no kernel of {call.op_type} for {found} {name}",
        _other_version(call, schema, target.kernels(call.op_type, call.domain))
        or (f"use {_substitute(found, accepted)} for {name}" if found in _SUBSTITUTES else None),
    )


def _argument(schema: Schema, parameter: str) -> str:
    """The name of the first argument that ``parameter`` constrains."""
    formals = (*schema.inputs, *schema.outputs)
    return next((one.name for one in formals if parameter in (one.type, one.name)), parameter)


def _plain(type: str) -> str:
    return type.removeprefix("tensor(").removesuffix(")") if type.startswith("tensor(") else type


#: Types that can represent all or most values of a type, in order of preference.
_SUBSTITUTES = {
    "int64": ("int32", "double", "float"),
    "int32": ("int64", "float"),
    "bool": ("uint8", "int32", "float"),
    "uint8": ("int32", "float"),
    "int8": ("int32", "float"),
    "double": ("float",),
    "float16": ("float",),
    "bfloat16": ("float",),
}


def _substitute(found: str, accepted: Collection[str]) -> str:
    usable = [one for one in _SUBSTITUTES.get(found, ()) if one in accepted]
    return usable[0] if usable else " or ".join(sorted(accepted))


def call_of(node: ir.Node, version: int, types: dict[ir.Value, str]) -> Call:
    """``node`` as a call, with the types of values in ``types``."""
    return Call(
        node.op_type,
        node.domain,
        version,
        tuple(None if value is None else types.get(value, "") for value in node.inputs),
        tuple(types.get(value, "") if value.name else None for value in node.outputs),
    )
