"""What all tests share: the settings of hypothesis, and `--update-golden`."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A slow or loaded machine must not fail a test: no deadline. The same examples everywhere: derandomized.
settings.register_profile("graphopt", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("graphopt")

# What was calibrated on a machine must not change what the tests see.
os.environ["GRAPHOPT_COSTS"] = "shipped"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))
