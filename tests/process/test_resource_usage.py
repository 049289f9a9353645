"""The meter measures time and growth of memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from graphopt.process.resource_usage import ResourceMeter, peak_resident


def test_time():
    with ResourceMeter() as meter:
        pass
    assert meter.seconds >= 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_memory():
    with ResourceMeter() as meter:
        np.ones(64 << 20, np.uint8)
    assert 60 << 20 < meter.peak_bytes < 128 << 20
    assert peak_resident() >= meter.peak_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_memory_in_use_before_does_not_count():
    held = np.ones(64 << 20, np.uint8)
    with ResourceMeter() as meter:
        held += 1
    assert meter.peak_bytes < 32 << 20
