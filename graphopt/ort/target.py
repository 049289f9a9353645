"""The target of optimization: a device, and the capabilities of the installed onnxruntime on it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ort import known_kernels, session
from graphopt.ort.devices import CPU, Device
from graphopt.process.child import run_in_child
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt import ir

#: An opset or IR version beyond all known ones; onnxruntime's error for it names the last known one.
_BEYOND = 9999
_OPEN = 2**31 - 1


@dataclass(frozen=True)
class Kernel:
    """One registered kernel.

    Attributes:
        since, until: the first and the last version of the operator that it implements. If the runtime names
            no last version, ``until`` equals ``since``, because a newer definition may differ.
        types: accepted types, such as ``tensor(float)``, by type parameter of the operator.
    """

    since: int
    until: int
    types: tuple[tuple[str, frozenset[str]], ...]


@dataclass(frozen=True)
class Target:
    """A device with onnxruntime.

    All properties are read from the installed runtime, once per process.
    """

    device: Device = CPU

    @property
    def provider(self) -> str:
        """onnxruntime's name of the execution provider."""
        return self.device.capabilities.provider

    @property
    def version(self) -> str:
        """onnxruntime's version."""
        import onnxruntime

        return str(onnxruntime.__version__)

    @property
    def opset_ceiling(self) -> int:
        """The newest ai.onnx opset that the runtime loads."""
        return _ceilings()[0]

    @property
    def ir_ceiling(self) -> int:
        """The newest IR version that the runtime loads."""
        return _ceilings()[1]

    @property
    def domains(self) -> frozenset[str]:
        """The domains of the operators that the runtime implements."""
        return frozenset(domain for domain, _ in _schemas())

    def has_kernel(
        self, op_type: str, domain: str, opset: int, dtype: ir.DataType | str | None = None
    ) -> bool:
        """Whether the runtime has its own kernel for an operator.

        A model may contain operators without a kernel: functions of the ONNX standard are expanded into their
        bodies, and float16 operators run between casts on the CPU. Expansion and casts cost time.

        Args:
            op_type, domain: the operator; ``""`` is ai.onnx.
            opset: version of the domain that the model imports.
            dtype: element type of the operator's first typed input or output, in onnxruntime's notation
                (``float``, ``int64``), or the name of a DataType; ``None`` for any.
        """
        schema = _schema(op_type, domain, opset)
        if schema is None:
            return False
        version, parameter = schema
        wanted = None if dtype is None else f"tensor({_element(dtype)})"
        for kernel in _kernels(self.provider).get((domain, op_type), ()):
            if not kernel.since <= version <= kernel.until:
                continue
            taken = dict(kernel.types).get(parameter)
            if wanted is None or taken is None or wanted in taken:
                return True
        return False


def _element(dtype: ir.DataType | str) -> str:
    return (dtype if isinstance(dtype, str) else dtype.name).lower()


@lru_cache(maxsize=1)
def _ceilings() -> tuple[int, int]:
    """(opset, IR version), parsed from the errors for versions that are too new."""
    return _ceiling(ir_version=8, opset=_BEYOND), _ceiling(ir_version=_BEYOND, opset=17)


def _ceiling(*, ir_version: int, opset: int) -> int:
    import onnx

    helper = onnx.helper
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([], "probe", [info], [info])
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", opset)])
    try:
        session.create(model.SerializeToString(), optimizations="off", threads=1)
    except RuntimeFailure as failure:
        message = str(failure.__cause__)
        match = re.search(r"till opset (\d+)|max supported IR version: (\d+)", message)
        if match is not None:
            return int(match[1] or match[2])
        raise
    return _BEYOND - 1


@lru_cache(maxsize=1)
def _schemas() -> dict[tuple[str, str], list[tuple[int, str]]]:
    """All versions by (domain, op type), each with its main type parameter."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for schema in state.get_all_operator_schema():
        parameters = {constraint.type_param_str for constraint in schema.type_constraints}
        formals = (*schema.inputs, *schema.outputs)
        parameter = next((formal.typeStr for formal in formals if formal.typeStr in parameters), "")
        found.setdefault((schema.domain, schema.name), []).append((schema.since_version, parameter))
    return {key: sorted(versions) for key, versions in found.items()}


def _schema(op_type: str, domain: str, opset: int) -> tuple[int, str] | None:
    """The operator's definition at ``opset``: its version, and its main type parameter."""
    known = [entry for entry in _schemas().get((domain, op_type), ()) if entry[0] <= opset]
    return known[-1] if known else None


@lru_cache(maxsize=4)
def _kernels(provider: str) -> dict[tuple[str, str], list[Kernel]]:
    """The kernels of ``provider``.

    If they can't be listed, they are those of the CPU, except for the ones in
    :mod:`graphopt.ort.known_kernels`. If only the CPU has a kernel, tensors are copied to the CPU and back,
    which no rewrite should cause.
    """
    return _registered(provider) or _assumed(provider)


def _assumed(provider: str) -> dict[tuple[str, str], list[Kernel]]:
    kernels = dict(_registered("CPUExecutionProvider"))
    for op_type, types in known_kernels.CUDA.items() if provider == "CUDAExecutionProvider" else ():
        parameter = _schemas()["com.microsoft", op_type][-1][1]
        taken = frozenset(f"tensor({name})" for name in types)
        kernels["com.microsoft", op_type] = [Kernel(1, 1, ((parameter, taken),))] if types else []
    return kernels


def _registered(provider: str) -> dict[tuple[str, str], list[Kernel]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    if provider == "CPUExecutionProvider" and hasattr(state, "get_registered_ep_kernel_defs"):
        return _table(state.get_registered_ep_kernel_defs(provider))
    try:
        # listing the kernels of all providers loads their libraries, and crashes if a library is missing
        return run_in_child(all_kernels, provider, timeout=60)
    except GraphoptError:
        return {}


def all_kernels(provider: str) -> dict[tuple[str, str], list[Kernel]]:
    """The kernels of ``provider``, selected from the kernels of all providers."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return _table(kernel for kernel in state.get_all_opkernel_def() if kernel.provider == provider)


def _table(definitions: Any) -> dict[tuple[str, str], list[Kernel]]:
    table: dict[tuple[str, str], list[Kernel]] = {}
    for definition in definitions:
        since, until = definition.version_range
        types = tuple((name, frozenset(taken)) for name, taken in definition.type_constraints.items())
        kernel = Kernel(since, until if 0 < until < _OPEN else since, types)
        table.setdefault((definition.domain, definition.op_name), []).append(kernel)
    return table
