"""The target of optimization: a device, and the capabilities of the installed onnxruntime on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.operator_schemas import domains, schema_of
from graphopt.ort.recorded_kernels import Kernel, recorded
from graphopt.process.child import run_in_child
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt import ir

#: An opset or IR version beyond all known ones; onnxruntime's error for it names the last known one.
_BEYOND = 9999
_OPEN = 2**31 - 1


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
        return domains()

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
        schema = schema_of(op_type, domain, opset)
        if schema is None:
            return False
        wanted = None if dtype is None else f"tensor({_element(dtype)})"
        for kernel in self.kernels(op_type, domain):
            if not kernel.since <= schema.since <= kernel.until:
                continue
            taken = dict(kernel.types).get(schema.parameter)
            if wanted is None or taken is None or wanted in taken:
                return True
        return False

    def kernels(self, op_type: str, domain: str) -> Sequence[Kernel]:
        """The kernels of an operator for all versions and types."""
        return _kernels(self.provider).get((domain, op_type), ())


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


@lru_cache(maxsize=4)
def _kernels(provider: str) -> Mapping[tuple[str, str], Sequence[Kernel]]:
    """The kernels of ``provider``; those of CUDA are recorded ones for the recorded release.

    For another release, onnxruntime lists them. If that fails, the recorded ones are returned.
    """
    from onnxruntime import __version__
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    if provider == CPU.capabilities.provider:
        return _table(state.get_registered_ep_kernel_defs(provider))
    own = recorded()
    if __version__ == own.version:
        return own.kernels
    try:
        # listing the kernels of all providers loads their libraries, and crashes if a library is missing
        listed = run_in_child(all_kernels, provider, timeout=60)
    except GraphoptError:
        return own.kernels
    return {key: [own.with_memory(key, kernel) for kernel in found] for key, found in listed.items()}


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
