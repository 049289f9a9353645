"""Options of the runs of bundles and executors: CUDA graphs, and checks of inputs."""

from __future__ import annotations

from typing import TypedDict

from graphopt.diagnostics.record import Record
from graphopt.errors import UsageError
from graphopt.ir.signature import Signature
from graphopt.specialization.cuda_graphs.captured_graphs import GraphOptions
from graphopt.specialization.cuda_graphs.graph_switch import GraphSwitch
from graphopt.specialization.size_checks import SizeChecks
from graphopt.util.lazy_dataclass import dataclass


class RunFeatureOptions(TypedDict, total=False):
    """The keywords of :class:`RunFeatures`."""

    cuda_graph: bool
    most_graphs: int
    static_inputs: tuple[str, ...]
    reuse_outputs: bool
    check_sizes: bool


@dataclass(frozen=True)
class RunFeatures:
    """The options; their meaning is that of the same options of :class:`graphopt.ExecutorOptions`."""

    cuda_graph: bool = False
    most_graphs: int = 8
    static_inputs: tuple[str, ...] = ()
    reuse_outputs: bool = False
    check_sizes: bool = False

    def __post_init__(self) -> None:
        if type(self.most_graphs) is not int or self.most_graphs < 1:
            raise UsageError(f"most_graphs must be an integer of at least 1, not {self.most_graphs!r}")
        for name in ("cuda_graph", "reuse_outputs", "check_sizes"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if isinstance(self.static_inputs, str):
            raise UsageError(f"static_inputs must be a tuple of names, not {self.static_inputs!r}")

    def switch(self, record: Record) -> GraphSwitch:
        """The switch of CUDA graphs, which reports to ``record``."""
        static = tuple(self.static_inputs)
        options = GraphOptions(self.most_graphs, static=static, reuse_outputs=self.reuse_outputs)
        return GraphSwitch(options if self.cuda_graph else None, record)

    def checks(self, signature: Signature) -> SizeChecks | None:
        """The checks of inputs, if requested; raises UsageError if a static input is unknown."""
        checks = SizeChecks(signature, tuple(self.static_inputs))
        return checks if self.check_sizes else None
