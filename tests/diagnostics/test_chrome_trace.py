"""Traces in Chrome's format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import graphopt
from graphopt import config
from graphopt.executor.executor_options import ExecutorOptions
from tests.model_testing import parse

_TWO = "g (float[N,4] x) => (float[N,4] y) { a = Identity(x)\n b = Relu(a)\n y = Exp(b) }"


def _trace(path: Path) -> list[dict[str, Any]]:
    with config.patch(trace=path, cache=False):
        graphopt.optimize(parse(_TWO), pipeline="dce,peephole")
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_events_have_the_fields_of_the_format(tmp_path: Path) -> None:
    for event in _trace(tmp_path / "t.json"):
        assert event["ph"] in ("B", "E", "i", "C", "M") and event["name"]
        assert type(event["pid"]) is type(event["tid"]) is int and isinstance(event["args"], dict)
        assert event["ph"] == "M" or type(event["ts"]) is int
        assert event["ph"] != "i" or event["s"] == "t"


def test_slices_of_a_track_are_nested(tmp_path: Path) -> None:
    """An E ends the innermost open slice of its track, so that B and E must nest, with ascending times."""
    open_: dict[tuple[int, int], list[dict[str, Any]]] = {}
    slices = set()
    for event in _trace(tmp_path / "t.json"):
        track = open_.setdefault((event["pid"], event["tid"]), [])
        if event["ph"] == "B":
            track.append(event)
        elif event["ph"] == "E":
            begin = track.pop()
            assert begin["name"] == event["name"] and begin["ts"] <= event["ts"]
            slices.add(event["name"])
    assert not any(open_.values())
    assert {"optimize", "dce", "peephole", "verification"} <= slices


def test_children_have_tracks_of_their_own(tmp_path: Path) -> None:
    events = _trace(tmp_path / "t.json")
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names.pop(os.getpid()) == f"graphopt {os.getpid()}"
    assert names and set(names.values()) == {f"child of {os.getpid()}"}
    named: set[tuple[int, int]] = set()
    for event in events:  # a track is named before its first event
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            named.add(track)
        assert track in named


def test_counters_are_numbers(tmp_path: Path) -> None:
    (counters,) = [event for event in _trace(tmp_path / "t.json") if event["ph"] == "C"]
    assert counters["args"]["passes"] == 2 and all(type(one) is int for one in counters["args"].values())


def test_the_compile_log_is_lines_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    executor = graphopt.compile(parse(_TWO), ExecutorOptions(compile_log=path, wait=None), verify=False)
    executor({"x": np.ones((3, 4), np.float32)})
    first, *_ = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["event"], first["phase"], first["id"]) == ("compilation", "end", 1)
