"""Fixtures of random tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.errors import NoCompiler
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.process.child import Child


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """Kernels run in a separate process, because faulty ones may crash it."""
    try:
        find_compiler(None)
    except NoCompiler:
        pytest.skip("no C compiler")
    with Child(preload=("onnxruntime",)) as child:
        yield child
