"""An interrupt at any step of publishing files reports exactly the named outputs that are on disk."""

from __future__ import annotations

import inspect
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphopt
from tests.cli.conftest import Invoke, Outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

_ROOT = Path(inspect.getfile(graphopt)).parent
#: The modules whose calls are steps: they publish files, and record their names.
_MODULES = (
    *("publish", "ir/io/save.py", "ir/io/save_with_data.py", "ir/io/data_file_replacement.py"),
    *("cli/invocation.py", "cli/optimize_job.py", "compiler/ahead_of_time.py"),
)
_TRACED = tuple(str(_ROOT / name) for name in _MODULES)


class InterruptAt:
    """Sends SIGINT to this process at one step of the functions in :data:`_MODULES`.

    The first step is the record of the outputs before the command.

    Args:
        step: the number of the step.
        lines: whether lines are steps, or only calls.

    Attributes:
        functions: the steps so far.
    """

    def __init__(self, step: int, *, lines: bool) -> None:
        self._step = step
        self._events = ("call", "line") if lines else ("call",)
        self.functions: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        # Python ignores exceptions while it closes a generator
        if not code.co_filename.startswith(_TRACED) or code.co_name == "<genexpr>":
            return None
        if not self.functions and code.co_qualname != "Invocation.watch":
            return None
        if event in self._events:
            self.functions.append(f"{event} {frame.f_lineno} of {code.co_qualname}")
            if len(self.functions) - 1 == self._step:
                signal.raise_signal(signal.SIGINT)
        return self

    def run(self, call: Callable[[], Outcome]) -> Outcome:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two models with weights in data files."""
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 64])],
        [helper.make_tensor_value_info("y", 1, ["N", 64])],
        [weight],
    )
    paths = [tmp_path / "in" / name / "m.onnx" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return paths


_OPTIMIZE = ("--weights", "beside", "--no-verify", "--no-cache")
#: Command lines, with ``{a}`` and ``{b}`` for the models and ``{out}`` for a new folder, and the outputs that
#: they name, without the files beside these. The last output is written last.
_COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "optimize": (("optimize", "{a}", "-o", "{out}/m.onnx", *_OPTIMIZE), ("m.onnx",)),
    "several": (
        ("optimize", "{a}", "{b}", "-o", "{out}", "--report", "{out}/r.json", *_OPTIMIZE),
        ("a/m.onnx", "b/m.onnx", "r.json"),
    ),
    "bundle": (("compile", "{a}", "-o", "{out}/m.gopt", "--no-verify"), ("m.gopt",)),
    "zip": (("compile", "{a}", "-o", "{out}/m.gopt", "--zip", "--no-verify"), ("m.gopt",)),
    "convert": (("convert", "{a}", "{out}/m.onnx"), ("m.onnx",)),
    "lift-parameters": (
        ("lift-parameters", "{a}", "-o", "{out}/m.onnx", "--parameters", "{out}/p.npz"),
        ("m.onnx", "p.npz"),
    ),
}


def _check_all_steps(name: str, models: list[Path], folder: Path, invoke: Invoke, *, lines: bool) -> None:
    words, outputs = _COMMANDS[name]
    reports: list[tuple[str, ...]] = []
    for step in range(10_000):
        out = folder / f"out{step}"
        out.mkdir()
        arguments = [word.format(a=models[0], b=models[1], out=out) for word in words]
        interrupt = InterruptAt(step, lines=lines)
        outcome = interrupt.run(partial(invoke, *arguments))
        if len(interrupt.functions) <= step:  # the command ended before this step
            assert outcome.status == 0, outcome.err
            break
        at = f"at step {step}, {interrupt.functions[step]}"
        written = tuple(name for name in outputs if (out / name).exists())
        names = ", ".join(str(out / name) for name in written)
        assert outcome.status == 130, f"{at}: {outcome}"
        reported = (f"; wrote {names}",) if written else ("", "; nothing was written")
        assert outcome.err.splitlines()[-1].removeprefix("graphopt: interrupted") in reported, at
        assert not [*out.rglob("*.graphopt-tmp")], at
        for model in out.rglob("*.onnx"):
            onnx.load(model)  # also its data
        reports.append(written)
        shutil.rmtree(out)
    assert reports[0] == () and reports[-1] == outputs, "the steps include the publication"


@pytest.mark.parametrize("name", _COMMANDS)
def test_report_of_each_step(name: str, models: list[Path], tmp_path: Path, invoke: Invoke) -> None:
    _check_all_steps(name, models, tmp_path, invoke, lines=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", _COMMANDS)
def test_report_of_each_line(name: str, models: list[Path], tmp_path: Path, invoke: Invoke) -> None:
    _check_all_steps(name, models, tmp_path, invoke, lines=True)
