"""A page with the runs of models that ``bench`` compares."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from graphopt.inputs.feeds import InputOptions
from graphopt.page.render import page_of
from graphopt.page.run_time import profile_runs
from graphopt.page.section import PageSource
from graphopt.timing.bench import Bench, Result
from graphopt.util.disk_store import Store


def run_time_page(
    bench: Bench, result: Result, inputs: InputOptions, store: Store, title: str, command: Sequence[str]
) -> bytes:
    """Profile the models of ``bench``, measured in ``result`` on the same inputs; returns the page.

    Args:
        bench: the models and options of the measurement.
        result: the measurement.
        inputs: the inputs of the profiled runs.
        store: the folder of measured peaks.
        title: the title of the page.
        command: the words of the command that repeats the measurement.

    Raises:
        RuntimeFailure: a model does not run.
        ResourceLimit: the measured peaks can't be stored.
        UsageError: a package of the extra ``report`` is not installed.
    """
    found = profile_runs(bench, result, inputs, store)
    return page_of(PageSource(title, shlex.join(command), run_time=found))
