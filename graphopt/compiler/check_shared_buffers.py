"""Check that outputs may be written over inputs, in a model and in the graph that onnxruntime runs."""

from __future__ import annotations

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.context import Options, context_for
from graphopt.errors import InvalidModel, RuntimeFailure, VerificationFailed
from graphopt.ort.optimized_graph import optimized_graph
from graphopt.ort.session_options import recommended
from graphopt.transforms.scalar.check_aliasing import CheckAliasing

#: Pairs of names, or of patterns of names: an input, and the output that shares its buffer.
Pairs = tuple[tuple[str, str], ...]


def check_shared(pairs: Pairs, env: Environment, model: ir.Model) -> None:
    """Check ``model`` and, unless verification is off, the graph that onnxruntime runs for it.

    Raises:
        UsageError: the model lacks an input or output.
        VerificationFailed: an output may overwrite elements of its input before they are read.
    """
    if pairs:
        _check(model, pairs)
        if env.settings.verify:
            check_in_runtime(pairs, env, model)


def check_in_runtime(pairs: Pairs, env: Environment, model: ir.Model) -> str | None:
    """Check the graph that onnxruntime runs for ``model`` on the device.

    Its optimizations may fuse a reader of the input with the producer of the output, or remove a copy.

    Returns:
        The reason why there is no graph to check; ``None`` if sharing is safe.

    Raises:
        VerificationFailed: an output may overwrite elements of its input before they are read.
    """
    choice = recommended(model, env.device) | env.toolchain.libraries(model).choice
    try:
        with optimized_graph(model, device=env.device, choice=choice) as optimized:
            _check(optimized, pairs)
    except VerificationFailed as failure:
        raise VerificationFailed(
            f"{failure.message} (in the graph that onnxruntime runs)",
            hint="give them buffers of their own; for sessions without optimizations (ORT_DISABLE_ALL),"
            " --no-verify checks the model alone",
        ) from failure
    except (RuntimeFailure, InvalidModel) as failure:
        return failure.message
    return None


def _check(model: ir.Model, pairs: Pairs) -> None:
    with context_for(model, Options(share_buffers=pairs)) as cx:
        CheckAliasing().run(model, cx)
