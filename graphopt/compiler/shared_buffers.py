"""Check that outputs may be written over inputs, in a model and in the graph that onnxruntime runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Options, context_for
from graphopt.errors import RuntimeFailure, VerificationFailed
from graphopt.ort import preflight
from graphopt.ort.devices import Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.transforms.scalar.check_aliasing import CheckAliasing


@dataclass(frozen=True)
class SharedBuffers:
    """Pairs of an input and the output that shares its buffer.

    Attributes:
        pairs: names, or patterns of names.
        device: the device that models run on.
        in_runtime: also check the graph after onnxruntime's own optimizations, which may fuse a reader of the
            input with the producer of the output, or remove a copy.
    """

    pairs: tuple[tuple[str, str], ...]
    device: Device
    in_runtime: bool

    def check(self, model: ir.Model) -> None:
        """Check ``model``; onnxruntime's graph is not checked if it can't load the model.

        Raises:
            UsageError: the model lacks an input or output.
            VerificationFailed: an output may overwrite elements of its input before they are read.
        """
        if not self.pairs:
            return
        options = Options(share_buffers=self.pairs)
        with context_for(model, options) as cx:
            CheckAliasing().run(model, cx)
        if not self.in_runtime:
            return
        artifact = Artifact(model)
        with contextlib.closing(artifact), contextlib.suppress(RuntimeFailure):
            preflight.try_load(artifact.source, device=self.device)
            with optimized_graph(artifact.source, device=self.device) as lowered:
                self._check_lowered(lowered, options)

    @staticmethod
    def _check_lowered(model: ir.Model, options: Options) -> None:
        try:
            with context_for(model, options) as cx:
                CheckAliasing().run(model, cx)
        except VerificationFailed as failure:
            raise VerificationFailed(
                f"{failure.message} (in the graph that onnxruntime makes of the model)",
                hint="give them buffers of their own, or run without onnxruntime's optimizations"
                " and check with --no-verify",
            ) from failure
