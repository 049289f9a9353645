"""Check that outputs may be written over inputs, in a model and in the graph that onnxruntime runs."""

from __future__ import annotations

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.context import Options, context_for
from graphopt.errors import InvalidModel, RuntimeFailure, VerificationFailed
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class SharedBufferCheck:
    """The check of models whose outputs callers write over inputs: the option ``share_buffers``.

    A call checks a model, and the graph that onnxruntime runs for it. It raises:
        UsageError: the model lacks an input or output.
        VerificationFailed: an output may overwrite elements of its input before they are read.

    Attributes:
        env: the options.
    """

    env: Environment

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Pairs of names, or of patterns of names: an input, and the output that shares its buffer."""
        return tuple(self.env.options["share_buffers"])

    def __call__(self, model: ir.Model) -> None:
        if self.pairs:
            self._check(model)
            self.in_runtime(model)

    def in_runtime(self, model: ir.Model) -> str | None:
        """Check the graph that onnxruntime runs for ``model`` on the device.

        Its optimizations may fuse a reader of the input with the producer of the output, or remove a copy.

        Returns:
            The reason why no graph is checked; ``None`` if sharing is safe.

        Raises:
            VerificationFailed: an output may overwrite elements of its input before they are read.
        """
        if not self.env.settings.verify:
            return "verification is off"
        from graphopt.ort.optimized_graph import optimized_graph
        from graphopt.ort.session_options import recommended

        choice = recommended(model, self.env.device) | self.env.toolchain.libraries(model).choice
        try:
            with optimized_graph(model, device=self.env.device, choice=choice) as optimized:
                self._check(optimized)
        except VerificationFailed as failure:
            raise VerificationFailed(
                f"{failure.message} (in the graph that onnxruntime runs)",
                hint="give them buffers of their own; for sessions without optimizations (ORT_DISABLE_ALL),"
                " --no-verify checks the model alone",
            ) from failure
        except (RuntimeFailure, InvalidModel) as failure:
            return failure.message
        return None

    def _check(self, model: ir.Model) -> None:
        from graphopt.transforms.scalar.check_aliasing import CheckAliasing

        with context_for(model, Options(share_buffers=self.pairs)) as cx:
            CheckAliasing().run(model, cx)
