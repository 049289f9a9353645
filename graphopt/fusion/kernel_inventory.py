"""The kernels of a model: of its groups, or of the groups that the pipeline ``native`` would create."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from graphopt import ir
from graphopt.analysis.symbolic import Dim, product
from graphopt.config import Settings
from graphopt.context import context_for
from graphopt.errors import NoCompiler, UnsupportedModel, UsageError
from graphopt.fusion.backend import Backend, ProgressCallback, backend_or_host
from graphopt.fusion.group_functions import Group, groups_of
from graphopt.fusion.group_signature import Tensor
from graphopt.fusion.kernel_library import SUFFIXES, without_unsupported_kernel, writing_library
from graphopt.fusion.template_kernel import NativeKernel
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.optimization_attempt import prepare
from graphopt.ort.devices import Device
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


@dataclass(frozen=True, repr=False)
class Inventory:
    """The kernels of a model.

    Attributes:
        groups: the groups, in the order of their names.
        proposed: whether the model has no groups; ``groups`` are then those that the pipeline ``native``
            would create.
        backend: prints and builds the kernels.
    """

    groups: tuple[Group, ...]
    proposed: bool
    settings: Settings
    backend: Backend

    @classmethod
    def of(cls, model: ir.Model, settings: Settings, device: Device) -> Inventory:
        """The inventory of ``model``, which is not modified.

        Args:
            device: the device of the kernels; for a device without a back end, kernels are for the CPU.

        Raises:
            InvalidModel: the signatures of its groups are malformed.
        """
        proposed = not graphopt_operators.has_groups(model)
        if proposed:
            model = copy(model)
            attempt = prepare(settings, pipeline="native").on(model)
            with context_for(model, attempt.options) as cx:
                attempt.pipeline.run(model, cx)
        backend = backend_or_host(device)
        groups = tuple(without_unsupported_kernel(group, backend) for group in groups_of(model))
        return cls(groups, proposed, settings, backend)

    def __repr__(self) -> str:
        groups, kernels = counted(len(self.groups), "group"), counted(len(self.kernels), "kernel")
        return f"<Inventory: {groups}{' proposed' if self.proposed else ''}, {kernels}>"

    @cached_property
    def kernels(self) -> list[NativeKernel]:
        """The kernels of all groups with a kernel."""
        return [group.kernel for group in self.groups if group.kernel is not None]

    def source(self) -> str:
        """The source of all kernels."""
        return self.backend.render(self.kernels)

    @cached_property
    def built(self) -> Path | None:
        """The library, if it is in the store."""
        try:
            store, compiler = Store(self.settings.cache_dir), self.settings.compiler
            return self.backend.find(self.kernels, store, compiler=compiler) if self.kernels else None
        except NoCompiler:
            return None

    def build(self, path: Path, progress: ProgressCallback | None = None) -> None:
        """Write the library to ``path``, atomically.

        Raises:
            UsageError: the model has no groups; or ``path`` can't be written, or has another suffix.
            UnsupportedModel: none of the groups has a kernel.
            NoCompiler: no C compiler was found.
            RuntimeFailure: the compiler fails.
        """
        if path.suffix not in SUFFIXES:
            raise UsageError(
                f"{path} needs the suffix {' or '.join(SUFFIXES)}", hint="it is a shared library"
            )
        if self.proposed:
            raise UsageError(
                "the model has no native groups, so it has no library",
                hint="graphopt optimize MODEL -o OUT.onnx --fuser native writes a model with its library",
            )
        if not self.kernels:
            raise UnsupportedModel("the model has no kernels, so there is no library to build")
        store, compiler = Store(self.settings.cache_dir), self.settings.compiler
        built = self.backend.build(self.kernels, store, compiler=compiler, progress=progress)
        with writing_library(built, path):
            pass


def bytes_of(tensors: tuple[Tensor, ...]) -> Dim:
    """Total size of ``tensors`` in bytes; an expression if they have symbols."""
    total: Dim = 0
    for tensor in tensors:
        total = total + product(tensor.fact.shape or ()) * tensor.element.bytes
    return total
