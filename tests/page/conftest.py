"""Fixtures of the browser tests, which are skipped on machines without Chromium."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.page import browser as browsers
from tests.page import report_pages
from tests.page.browser import Browser

PageOf = Callable[[str], Path]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser that all tests of a process share."""
    pytest.importorskip("selenium")
    if (name := browsers.missing_program()) is not None:
        pytest.skip(f"{name} is not installed (Debian packages chromium and chromium-driver)")
    from selenium.common.exceptions import WebDriverException

    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(browsers.started())
        except WebDriverException as error:  # such as a container without the system calls of its sandbox
            pytest.skip(f"Chromium does not start: {error.msg}")
        yield started


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> PageOf:
    """The file of the report page of a model of :data:`report_pages.MODELS`, written once."""
    folder, written = tmp_path_factory.mktemp("pages"), dict[str, Path]()

    def page(name: str) -> Path:
        if name not in written:
            written[name] = folder / f"{name}.html"
            written[name].write_bytes(report_pages.report_page(name))
        return written[name]

    return page
