"""A second back end: kernels as Python functions on numpy arrays, for a device that exists only in tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphopt.fusion.backend import Backend, Features, ProgressCallback
from graphopt.fusion.loops.collapse import CollapsedNest, StridedAccess, collapse
from graphopt.fusion.loops.ir import Element, Instruction, Kernel, Size
from graphopt.util.disk_store import Store, key_of

_REDUCTIONS = {"reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min"}
_HEADER = """import numpy as np
from graphopt.fusion.loops.instructions import OPS

f32, bool = np.float32, np.bool_
"""


@dataclass(frozen=True)
class NumpyBackend:
    """Supports float32 without concatenations."""

    name: str = "numpy"
    device: str = "array"
    features: Features = field(
        default_factory=lambda: Features(elements=frozenset({Element.F32}), segments=False)
    )

    def schedule(self, kernel: Kernel) -> Sequence[CollapsedNest]:
        return [collapse(kernel, segment) for segment in kernel.segments]

    def render(self, kernels: Sequence[Kernel]) -> str:
        return "\n".join([_HEADER, *(line for kernel in kernels for line in self._function(kernel))]) + "\n"

    def build(
        self,
        kernels: Sequence[Kernel],
        store: Store,
        *,
        compiler: str | None = None,
        progress: ProgressCallback | None = None,
        levels: Sequence[int] | None = None,
    ) -> Path:
        source = self.render(kernels)

        def write(folder: Path) -> None:
            (folder / "kernels.py").write_text(source)

        return store.folder("numpy", key_of(source), write) / "kernels.py"

    def levels(self, requested: Sequence[int] | None = None) -> tuple[int, ...]:
        return ()

    def find(self, kernels: Sequence[Kernel], store: Store, *, compiler: str | None = None) -> Path | None:
        return self.build(kernels, store)

    def describe_compiler(self, compiler: str | None = None) -> str:
        return f"numpy {np.__version__}"

    def _function(self, kernel: Kernel) -> Iterator[str]:
        (nest,) = self.schedule(kernel)
        inputs = [f"in{index}" for index in range(len(kernel.inputs))]
        yield f"def {kernel.name}({', '.join(inputs)}):"
        for index, symbol in enumerate(kernel.symbols):
            yield f"    s{index} = in{symbol.input}.shape[{symbol.axis}]"
        for index, loop in enumerate(nest.loops):
            shape = ["1"] * len(nest.loops)
            shape[index] = "-1"
            yield f"    i{index} = np.arange({_size(loop.stop)}).reshape({', '.join(shape)})"
        yield f"    points = np.broadcast_shapes({', '.join(f'i{index}.shape' for index in range(len(nest.loops)))})"
        for index in nest.live:
            yield f"    v{index} = {_value(nest, index, nest.body[index])}"
        for number, store in enumerate(nest.stores):
            dims = "".join(f"{_size(dim)}, " for dim in kernel.outputs[store.access.port].dims)
            yield f"    out{number} = np.empty(({dims}), f32)"
            yield f"    at, value = np.broadcast_arrays({_index(store.access)}, v{store.instruction})"
            yield f"    out{number}.reshape(-1)[at] = value"
        yield f"    return [{', '.join(f'out{number}' for number in range(len(nest.stores)))}]"


def _value(nest: CollapsedNest, index: int, step: Instruction) -> str:
    dtype = "bool" if step.element is Element.BOOL else "f32"
    args = [f"v{arg}" for arg in step.args]
    if step.op == "load":
        return f"in{nest.loads[index].port}.reshape(-1)[{_index(nest.loads[index])}]"
    if step.op == "constant":
        return f"{dtype}({step.value!r})"
    if step.op == "extent":
        assert step.size is not None
        return f"f32({_size(step.size)})"
    if step.is_reduction:
        return (
            f"np.broadcast_to({args[0]}, points).{_REDUCTIONS[step.op]}(axis={nest.reduced}, keepdims=True)"
        )
    return f"{dtype}(OPS[{step.op!r}].numpy({', '.join(args)}))"


def _index(access: StridedAccess) -> str:
    terms = [f"{_size(stride)} * i{loop}" for loop, stride in enumerate(access.strides) if stride.factor]
    return " + ".join([*terms, *map(_size, access.offsets)]) or "0"


def _size(size: Size) -> str:
    return " * ".join([str(size.factor), *(f"s{symbol}" for symbol in size.symbols)])


def load(library: Path) -> Callable[[Kernel], Callable[..., list[np.ndarray]]]:
    """The functions of a library, by kernel."""
    spec = importlib.util.spec_from_file_location("kernels", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda kernel: getattr(module, kernel.name)


BACKEND: Backend = NumpyBackend()
