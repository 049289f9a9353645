"""Session options from files with arbitrary contents."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from graphopt.ort.devices import CPU
from graphopt.ort.session_options import SessionChoice, recommended_by

CORES = os.cpu_count() or 1


@pytest.mark.parametrize("threads", [CORES + 1, 4000, 10**30])
def test_no_more_threads_than_cores(threads: int) -> None:
    found = recommended_by(json.dumps({"device": "cpu", "threads": threads}), CPU)
    assert found.threads == CORES
    assert found.remark == f"{threads} threads are recommended, and this machine has {CORES} cores"
    assert (SessionChoice() | found).remark == found.remark and "remark" not in found.to_dict()


@pytest.mark.parametrize(
    "entries",
    [
        {"threads": -1},
        {"threads": True},
        {"threads": "2"},
        {"threads": 1.5},
        {"spinning": 0, "arena": None},
        {"disabled": "all"},
        {"disabled": {"a": 1}},
        {"libraries": ["/lib/evil.so"], "cpu_level": 99, "remark": "x"},
    ],
)
def test_invalid_fields_are_ignored(entries: dict[str, Any]) -> None:
    assert recommended_by(json.dumps({"device": "cpu", **entries}), CPU) == SessionChoice()


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "3", "null", "[" * 100_000, '{"device": "cuda", "threads": 1}']
)
def test_invalid_texts_are_ignored(text: str) -> None:
    assert recommended_by(text, CPU) == SessionChoice()
