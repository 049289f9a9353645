"""Options of an executor."""

from __future__ import annotations

import os
from typing import Literal

from graphopt.errors import UsageError
from graphopt.profile import FusionStrategy, StrategyLike
from graphopt.specialization.run_features import RunFeatures
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ExecutorOptions:
    """Options of an executor.

    Attributes:
        strategy: the number and kinds of specializations, in any form; kept as a :class:`FusionStrategy`.
        profiled_runs: the number of runs to profile before each specialization.
        compile: with ``blocking``, runs wait for a specialization; with ``background``, they use the general
            plan.
        wait: with ``blocking``, the maximum time that runs wait for a specialization, in seconds from its
            start; after this time, the specialization finishes in the background. ``None``: no limit.
        release: release the original when it is not needed; no specializations are made afterwards. The
            models of plans are moved to temporary files, which are written during the delay.
        delay: seconds from the last specialization to the release; without specializations, from the general
            plan.
        most_plans: the maximum number of optimized plans; the least recently used one is evicted, and its
            specialization still counts towards ``depth``. Its inputs then count as new.
        depth: the maximum number of specializations, failed ones included; by default that of the strategy.
        requires_grad: inputs and initializers for which :meth:`Executor.vjp` returns gradients. Pipelines
            with a path for gradients then use this path.
        by_group: differentiate groups of nodes for :meth:`Executor.vjp` (docs/gradients.md).
        watch: the profiled values: ``inputs``; ``shapes``, also intermediate values with data-dependent
            shapes; or ``all`` values. Each profiled run requires an additional run without optimizations,
            except with ``inputs``.
        watch_limit: the maximum number of watched intermediate values.
        pipelines: ``preset``: all plans run ``pipeline``; or ``jit``: they run the pipelines of PyTorch's JIT
            (``plan-general``, ``plan-profiled`` and ``plan-optimized``). By default the setting.
        cuda_graph: capture the kernels of runs in CUDA graphs, and replay these, where possible
            (docs/diagnostics.md#cuda-graphs).
        most_graphs: the maximum number of captured graphs of a plan, one for each set of input shapes.
        static_inputs: inputs with the same address in each run, such as weights, as values on the device;
            CUDA graphs read them in place.
        reuse_outputs: :meth:`Executor.run_bound` returns the output buffers of a CUDA graph, which the next
            run of the same shapes overwrites, instead of copies.
        check_sizes: check the number and shapes of inputs, and the addresses of ``static_inputs``, before
            each run.
        compile_log: a file to which each compilation is appended, as a line of JSON.
    """

    strategy: StrategyLike | None = None
    profiled_runs: int = 1
    compile: Literal["blocking", "background"] = "blocking"
    wait: float | None = 2.0
    release: bool = False
    delay: float = 60.0
    most_plans: int | None = None
    depth: int | None = None
    requires_grad: tuple[str, ...] = ()
    by_group: bool = False
    watch: Literal["inputs", "shapes", "all"] = "inputs"
    watch_limit: int = 1024
    pipelines: Literal["preset", "jit"] | None = None
    cuda_graph: bool = False
    most_graphs: int = 8
    static_inputs: tuple[str, ...] = ()
    reuse_outputs: bool = False
    check_sizes: bool = False
    compile_log: str | os.PathLike[str] | None = None

    @property
    def features(self) -> RunFeatures:
        """The options that bundles have, too; raises UsageError if one is invalid."""
        return RunFeatures(
            self.cuda_graph, self.most_graphs, self.static_inputs, self.reuse_outputs, self.check_sizes
        )

    def __post_init__(self) -> None:
        if self.strategy is not None:
            object.__setattr__(self, "strategy", FusionStrategy.of(self.strategy))
        _ = self.features  # checks them
        for name, least in (("profiled_runs", 0), ("most_plans", 1), ("depth", 0), ("watch_limit", 0)):
            number = getattr(self, name)
            optional = number is None and name in ("most_plans", "depth")
            if not optional and (type(number) is not int or number < least):
                raise UsageError(f"{name} must be an integer of at least {least}, not {number!r}")
        for name in ("delay", "wait"):
            seconds = getattr(self, name)
            optional = seconds is None and name == "wait"
            if not optional and (not isinstance(seconds, int | float) or not seconds >= 0):
                raise UsageError(f"{name} must be a number of seconds of at least 0, not {seconds!r}")
        for name in ("release", "by_group"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if isinstance(self.requires_grad, str):
            raise UsageError(f"requires_grad must be a tuple of names, not {self.requires_grad!r}")
        if self.compile not in ("blocking", "background"):
            raise UsageError(f"compile must be blocking or background, not {self.compile!r}")
        if self.watch not in ("inputs", "shapes", "all"):
            raise UsageError(f"watch must be inputs, shapes or all, not {self.watch!r}")
        if self.pipelines not in (None, "preset", "jit"):
            raise UsageError(f"pipelines must be preset or jit, not {self.pipelines!r}")
        if self.compile_log is not None and not isinstance(self.compile_log, str | os.PathLike):
            raise UsageError(f"compile_log must be a path, not {self.compile_log!r}")
