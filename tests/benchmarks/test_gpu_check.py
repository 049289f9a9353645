"""The check of a GPU: its sections on the CPU, and results that survive faults of items and of the check."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.gpu_check import device_copy, schedule
from benchmarks.gpu_check.plan import SECTIONS
from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.rows import Column, Row, table
from benchmarks.gpu_check.running import Variant, alternate, complaint, error
from benchmarks.gpu_check.section import Bench, NotApplicable, Outcome, Section
from graphopt.ort.devices import CPU, Device, probe_cuda
from graphopt.ort.session_options import SessionChoice
from graphopt.timing.alternating_runs import Setup

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def rows_in(folder: Path) -> list[Row]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert list(json.loads(lines[0])) == ["machine"]
    return [Row.parse(line) for line in lines[1:]]


def test_the_quickest_items_are_rehearsed_on_the_cpu(tmp_path: Path) -> None:
    items = ["default", "CUDA graph", "control_flow", "digits", "all"]
    done = check(
        *("--device", "cpu", "--only", "smoke", "models", "trainer", "placement"),
        *("--items", *items, "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(row.section, row.item): row for row in rows_in(tmp_path)}
    assert found["smoke", "default"].status == found["trainer", "digits"].status == "ok"
    assert found["smoke", "CUDA graph"].status == "skipped"
    model = found["models", "control_flow"]
    assert model.status == "ok" and model.figures["ms original"] > 0
    assert done.stdout.strip() == (tmp_path / "results.md").read_text().strip()
    assert "| control_flow |" in done.stdout


def test_a_kernel_is_compared_and_timed_in_a_rehearsal(tmp_path: Path) -> None:
    done = check(
        *("--device", "cpu", "--only", "kernels", "bandwidth", "--items", "gate", "--out", str(tmp_path))
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kernels, bandwidth = rows_in(tmp_path)
    assert (kernels.status, kernels.figures["groups"]) == ("ok", 1)
    assert 0 < bandwidth.figures["share"] < 2


@pytest.mark.skipif(probe_cuda().available, reason="there is a GPU")
def test_missing_cuda_is_reported_in_one_line(tmp_path: Path) -> None:
    done = check("--out", str(tmp_path / "out"))
    assert done.returncode == 6
    assert done.stdout == "" and not (tmp_path / "out").exists()
    assert len(done.stderr.splitlines()) == 1
    assert "CUDA can't be used" in done.stderr and "--device cpu" in done.stderr


def test_unknown_items_and_folders_are_reported(tmp_path: Path) -> None:
    rehearsal = ("--device", "cpu", "--only", "smoke", "--out", str(tmp_path / "out"))
    done = check(*rehearsal, "--items", "defualt")
    assert done.returncode == 2 and "no section has an item 'defualt'" in done.stderr
    done = check(*rehearsal, "--models", str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "no such folder" in done.stderr


# Faults --------------------------------------------------------------------------------------

#: A program that runs sections of the tests, instead of those of the check.
WORKER = """
import sys
from benchmarks.gpu_check import work
from tests.benchmarks import test_gpu_check
sys.exit(work.main(test_gpu_check.FAULTY))
"""


def _crash() -> Outcome:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("it is dead")


def _raise() -> Outcome:
    raise ValueError("no such thing")


def _print() -> Outcome:
    os.write(1, b"*** a library prints to stdout ***\n")
    return Outcome({"error": 0.0})


def _sleep() -> Outcome:
    time.sleep(600)
    return Outcome({})


def _items(bench: Bench):
    return {
        "prints": _print,
        "crashes": _crash,
        "raises": _raise,
        "wrong": lambda: Outcome({"error": math.inf}, wrong="error inf"),
        "fine": lambda: Outcome({"error": 0.5}),
    }


FAULTY = (
    Section("faulty", "Faults", 60.0, (Column("error", "error"),), _items),
    Section("late", "Too late", 0.0, (), lambda bench: {"sleeps": _sleep}),
    Section("slow", "Too slow", 5.0, (), lambda bench: {"sleeps": _sleep, "next": lambda: Outcome({})}),
)


def plan(scratch: Path, seconds: float = 60.0) -> schedule.Plan:
    return schedule.Plan("cpu", seconds, scratch, worker=(sys.executable, "-c", WORKER))


def test_an_item_that_fails_or_crashes_leaves_the_other_items(tmp_path: Path) -> None:
    report = Report(tmp_path, FAULTY[:1], {"device": "none"})
    schedule.run(plan(tmp_path), report)
    found = {row.item: row for row in rows_in(tmp_path)}
    statuses = {item: row.status for item, row in found.items()}
    assert statuses == {
        "prints": "ok",
        "crashes": "failed",
        "raises": "failed",
        "wrong": "wrong",
        "fine": "ok",
    }
    assert "died of SIGSEGV" in found["crashes"].note
    assert (list(found["wrong"].figures), found["wrong"].note) == (["seconds"], "error inf")
    assert found["raises"].note == "ValueError: no such thing"
    assert report.has_faults
    assert "| faulty | 2 | 1 | 2 | 0 | 0 |" in report.text()


def test_a_section_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_GRACE", 1.0)
    report = Report(tmp_path, FAULTY[1:], {"device": "none"})
    schedule.run(plan(tmp_path), report)
    late, stopped, *following = rows_in(tmp_path)
    assert (late.section, late.status) == ("late", "late")
    assert (stopped.section, stopped.item, stopped.note) == (
        "slow",
        "sleeps",
        "it took too long, and was stopped",
    )
    assert all((row.item, row.status) == ("next", "late") for row in following)


def test_a_check_that_is_killed_leaves_its_results_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--only", "smoke", "trainer"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None and process.stdout is not None
    for line in process.stderr:
        if "trainer: digits" in line:
            break
    workers = _processes("--ppid", str(process.pid))
    assert workers
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert "| default |" in process.stdout.read()
    assert rows_in(tmp_path)[0].item == "default"
    assert not _processes("--pid", ",".join(workers))


def _processes(*selection: str) -> list[str]:
    """The ids of running processes."""
    done = subprocess.run(["ps", *selection, "-o", "pid=,stat="], capture_output=True, text=True, check=False)
    return [line.split()[0] for line in done.stdout.splitlines() if "Z" not in line]


# Parts ---------------------------------------------------------------------------------------


def test_sections_fit_into_eight_minutes() -> None:
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)
    assert sum(section.seconds for section in SECTIONS) <= 440


def test_errors_are_relative_to_the_largest_element() -> None:
    one = np.array([1.0, -4.0], np.float32)
    assert error([one], [one]) == 0.0
    assert error([one], [np.array([1.0, -3.0], np.float32)]) == 0.25
    assert error([one], [one[:1]]) == math.inf
    nan, inf = np.array([np.nan, np.inf, 1.0]), np.array([np.nan, -np.inf, 1.0])
    assert error([nan], [nan]) == 0.0 and error([nan], [inf]) == math.inf
    assert error([one], [np.array([np.nan, -4.0])]) == math.inf
    assert error([np.array([], np.float32)], [np.array([], np.float32)]) == 0.0
    assert complaint(1e-4) == "" and complaint(math.inf) == "error inf, more than 1e-03"


def test_runs_take_turns() -> None:
    calls: list[str] = []
    times = alternate({name: lambda name=name: calls.append(name) for name in ("a", "b")}, 0.0)  # type: ignore[misc]
    assert set(times) == {"a", "b"} and {len(found) for found in times.values()} == {5}
    assert {"ab", "ba"} <= {one + two for one, two in pairwise(calls)}


class Driver:
    """A driver that records copies; all other functions succeed."""

    def __init__(self, status: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self._status = status

    def __getattr__(self, name: str):
        def call(*arguments):
            size = arguments[2].value if name.startswith("cuMemcpyDtoD") else 0
            self.calls.append((name, size))
            return self._status

        return call


def test_copies_on_cuda_are_queued_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, made = Driver(), onnxruntime.OrtValue.ortvalue_from_numpy
    monkeypatch.setattr(device_copy.ctypes, "CDLL", lambda path: driver)
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", lambda array, *device: made(array))
    copy = device_copy.copier(Device("cuda"), 4096)
    driver.calls.clear()
    copy(2)
    assert driver.calls == [("cuMemcpyDtoDAsync_v2", 4096)] * 2 + [("cuCtxSynchronize", 0)]
    monkeypatch.setattr(device_copy.ctypes, "CDLL", lambda path: Driver(status=100))
    with pytest.raises(NotApplicable, match="cuInit failed with CUDA error 100"):
        device_copy.copier(Device("cuda"), 4096)


def test_a_variant_has_its_options_and_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Setup] = []
    monkeypatch.setattr(Setup, "session", lambda self, *_, **__: created.append(self))
    choice = SessionChoice(libraries=("kernels.so",))
    for variant, tf32 in (
        (Variant(b""), True),
        (Variant(b"", choice), False),
        (Variant(b"", provider_options={"enable_cuda_graph": "1"}), False),
    ):
        variant.session(Device("cuda"), tf32=tf32)
    Variant(b"").session(CPU, tf32=False)
    assert [setup.provider_options for setup in created] == [
        {"use_tf32": "1"},
        {"use_tf32": "0"},
        {"use_tf32": "0", "enable_cuda_graph": "1"},
        {},
    ]
    assert [dict(setup.choices) for setup in created] == [{}, {"": choice}, {}, {}]


def test_columns_without_figures_are_omitted() -> None:
    rows = [Row("s", "one", "ok", {"x": 1}), Row("s", "two", "failed", note="a | b")]
    text = table((Column("x", "first"), Column("y", "second")), rows)
    assert "second" not in text and "a \\| b" in text and "| two | – | failed |" in text
