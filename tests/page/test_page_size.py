"""The size of pages, and the growth of their time, with the number of nodes."""

from __future__ import annotations

import time

import pytest

from graphopt.compiler import Compiler
from graphopt.compiler.page_source import page_source
from graphopt.page.render import page_of
from tests.page.large_models import large_model

pytest.importorskip("fast_sugiyama")

#: Maximum size of a page in bytes: a constant part, and one for each node of both graphs.
_CONSTANT, _PER_NODE = 6_000_000, 1_000


def _page(count: int) -> tuple[bytes, float]:
    """The page of a model and its result, which is almost equal, and the CPU seconds."""
    original, result = large_model(count), large_model(count)
    result.graph.node[0].name = "renamed"
    begin = time.process_time()
    page = page_of(page_source(Compiler(), original, result))
    return page, time.process_time() - begin


def test_size_and_time_are_linear_up_to_20_000_nodes() -> None:
    small, small_seconds = min((_page(2_000) for _ in range(2)), key=lambda pair: pair[1])
    large, large_seconds = _page(20_000)
    assert len(large) < _CONSTANT + _PER_NODE * 20_000
    assert len(large) < 11 * len(small)
    assert large_seconds < 40 * small_seconds  # a quadratic method would take 100 times the time
