"""The interface of sections, and their discovery.

A section is a module in :mod:`graphopt.page.sections` with a function ``build(source)`` that returns a
:class:`Section`, or ``None`` if there is nothing to show. Its script registers ``page.section(name, …)``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.instrument.report import Report
from graphopt.page.page_data import GraphData, Stage
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from markupsafe import Markup

    from graphopt.executor.debug_state import DebugState
    from graphopt.page.run_time import RunTime
    from graphopt.profile import Profile
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.training.loss_log import LossRecord
    from graphopt.verification.inner_tensors.departures import TensorComparison

#: The hint of errors about missing packages.
INSTALL = "pip install 'graphopt[report]'"


@dataclass(frozen=True)
class PageSource:
    """The contents of a page, from which sections select theirs.

    Attributes:
        title: the title of the page.
        command: the command that creates it again; empty if there is none.
        models: the original and the result, or one model.
        graphs: the data of these models.
        makers: the rules and passes that graphs refer to.
        report: the report of the optimization, if one ran.
        stages: the stages of the pipeline, if one ran.
        run_time: the measured runs of the models, in the order of ``graphs``.
        comparison: the comparison of the inner tensors of both models.
        profile: the profile that the models are specialized for.
        bundle: the bundle of the model and its variants.
        executor_state: the state of an executor of the model.
        losses: the losses of a training.
        names: the names of the models that are compared.
    """

    title: str
    command: str = ""
    models: Sequence[ir.Model] = ()
    graphs: Sequence[GraphData] = ()
    makers: Sequence[str] = ()
    report: Report | None = None
    stages: Sequence[Stage] = field(default_factory=tuple)
    run_time: RunTime | None = None
    comparison: TensorComparison | None = None
    profile: Profile | None = None
    bundle: Bundle | None = None
    executor_state: DebugState | None = None
    losses: Sequence[LossRecord] = ()
    names: tuple[str, str] = ("A", "B")


@dataclass(frozen=True)
class Section:
    """One section of a page.

    Attributes:
        name: the identifier in JSON, in scripts and in the address: lower-case letters and hyphens.
        title: the heading.
        order: sections are sorted by it; the graph has 20.
        html: contents from :func:`from_template`; a plain string is escaped.
        data: JSON for the script of the section.
    """

    name: str
    title: str
    order: int
    html: Markup | str | None = None
    data: Any = None


def check_installed() -> None:
    """Check that pages can be written, before a long run.

    Raises:
        UsageError: a package of the extra ``report`` is not installed.
    """
    for name, module in (("fast-sugiyama", "fast_sugiyama"), ("jinja2", "jinja2")):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"the report page requires the package {name}", hint=INSTALL) from error


def from_template(template: str, /, **values: Any) -> Markup:
    """Render a Jinja template; values are escaped, and undefined ones are errors.

    Raises:
        UsageError: Jinja is not installed.
    """
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise UsageError("the report page requires the package jinja2", hint=INSTALL) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return markupsafe.Markup(environment.from_string(template).render(values))


def sections_of(source: PageSource) -> list[Section]:
    """All sections with contents, in the order of the page."""
    built = (module.build(source) for module in _modules())
    return sorted((one for one in built if one is not None), key=lambda one: (one.order, one.name))


def _modules() -> Iterator[Any]:
    package = importlib.import_module("graphopt.page.sections")
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        yield importlib.import_module(f"{package.__name__}.{info.name}")
