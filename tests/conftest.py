"""Shared by all tests: the settings of hypothesis, `--update-golden`, `--screenshots`, and the choice of tests for `make test`."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from graphopt import config
from tests.golden_files import GoldenFiles

# A slow or loaded machine must not fail a test: no deadline. The same examples everywhere: derandomized.
settings.register_profile("graphopt", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("graphopt")

# Calibrations of a machine must not affect tests.
os.environ["GRAPHOPT_COSTS"] = "shipped"

# Tests compute their results; stored results of the user or of other tests must not replace them. Tests of the
# result cache switch it on, each with a store of its own.
os.environ["GRAPHOPT_CACHE"] = "false"
_conventions = config._conventions
config._conventions = lambda environ: {**_conventions(environ), "cache": False}

# Tests send no usage data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Nor does the width of the terminal in which the tests run, which pytest-xdist passes on.
os.environ.pop("COLUMNS", None)


#: `make test` runs every second test function of a file, and of its cases the first ones and then every eighth.
FUNCTIONS, FIRST_CASES, CASES = 2, 2, 8


def left_to_full() -> tuple[str, ...]:
    """The entries of full.txt."""
    lines = Path(__file__).with_name("full.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark with ``full`` the tests that run only by `make test-full`."""
    entries = left_to_full()
    cases: Counter[str] = Counter()
    functions: dict[str, dict[str, int]] = {}  # of each file, in order
    for item in items:
        function = item.nodeid.partition("[")[0]
        of_file = functions.setdefault(function.partition("::")[0], {})
        position, case = of_file.setdefault(function, len(of_file)), cases[function]
        cases[function] += 1
        chosen = position % FUNCTIONS == 0 and (case < FIRST_CASES or case % CASES == 0)
        if not chosen or item.nodeid.startswith(entries):
            item.add_marker("full")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
    parser.addoption(
        "--screenshots", action="store_true", help="write the pictures of the documentation anew"
    )


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> GoldenFiles:
    """The golden files of a test file."""
    tests = request.path.relative_to(request.config.rootpath).as_posix()
    return GoldenFiles(bool(request.config.getoption("--update-golden")), tests)


@pytest.fixture(autouse=True)
def _seed_generator(request: pytest.FixtureRequest) -> None:
    """Seed the generator ``RANDOM`` of a test's module by its name: its values depend on no other test."""
    generator = getattr(request.module, "RANDOM", None)
    if isinstance(generator, np.random.Generator):
        seed = zlib.crc32(request.node.name.encode())
        generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state
