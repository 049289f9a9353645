"""A page with the runs of models that ``bench`` compares."""

from __future__ import annotations

from graphopt.inputs.feeds import InputOptions
from graphopt.page.render import page_of
from graphopt.page.run_time import profile_runs
from graphopt.page.section import PageSource
from graphopt.timing.bench import Bench, Result
from graphopt.util.disk_store import Store


def run_time_page(bench: Bench, result: Result, inputs: InputOptions, store: Store) -> bytes:
    """Profile the models of ``bench``, measured in ``result`` on the same inputs; returns the page.

    Raises:
        RuntimeFailure: a model does not run.
        ResourceLimit: the measured peaks can't be stored.
        UsageError: a package of the extra ``report`` is not installed.
    """
    title = " and ".join(one.name for one in bench.contestants)
    return page_of(PageSource(title, run_time=profile_runs(bench, result, inputs, store)))
