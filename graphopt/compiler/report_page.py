"""The report page of an optimization, or of two models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from graphopt.compiler.environment import Environment
from graphopt.model_arguments import ModelLike
from graphopt.optimize_options import OptimizeOptions
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.executor.executor import Executor
    from graphopt.specialization.bundle.loaded_bundle import Bundle


@checked
def report(
    env: Environment,
    model: ModelLike,
    other: ModelLike | Bundle | None = None,
    *,
    executor: Executor | None = None,
    **options: Unpack[OptimizeOptions],
) -> bytes:
    """A page in HTML that shows an optimization: both graphs, their relations, the passes, and the verdict.

    The page is one file that needs no network. It requires the extra ``report``.

    >>> Path("report.html").write_bytes(graphopt.report("model.onnx"))        # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        other: a result of ``model``, which is then not optimized; nodes are related by the lineage that
            ``optimize(provenance=True)`` recorded, or else by their names. Of a bundle, the page shows the
            general model and the variants.
        executor: an executor of the model, whose plans, hits and misses are shown, too.
        options: as for :func:`optimize`.

    Raises:
        UsageError: a package of the extra ``report`` is not installed.
        GraphoptError: as for :func:`optimize`.
    """
    from graphopt.compiler.page_source import page_source
    from graphopt.page.render import page_of

    source = page_source(env.having(options), model, other)
    if executor is not None:
        source = replace(source, executor_state=executor.debug_state())
    return page_of(source)
