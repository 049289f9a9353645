"""Shared fixtures of the tests of rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.process.child import Child


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    with Child(preload=["onnxruntime"]) as child:
        yield child
