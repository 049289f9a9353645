"""The host in C, compiled with gcc's sanitizers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import c_host
from graphopt.errors import NoCompiler
from graphopt.fusion.backends.c.c_compiler import find_compiler


def build(folder: Path, source: Path = c_host.SOURCE) -> Path:
    """Compile ``source``, or skip the test if this system can't."""
    if sys.platform != "linux":
        pytest.skip("the host is linked with the flags of Linux")
    if c_host.runtime() is None:
        pytest.skip("this onnxruntime has no library for C")
    try:
        if find_compiler().kind == "zig":
            pytest.skip("zig has no address sanitizer")
    except NoCompiler as error:
        pytest.skip(str(error))
    return c_host.build(folder, source=source)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host."""
    return build(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``open_bundles.c``, which embeds the host."""
    return build(tmp_path_factory.mktemp("opener"), Path(__file__).with_name("open_bundles.c"))
