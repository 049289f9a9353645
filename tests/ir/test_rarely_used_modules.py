"""Modules of onnx and onnx-ir that are executed when they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()


def test_they_are_not_executed_by_the_import() -> None:
    code = "import sys, graphopt.ir, onnx; print('argparse' in sys.modules, 'tarfile' in sys.modules)"
    assert _run(code) == ["False False"]


def test_their_attributes_are_those_of_onnx() -> None:
    names = ("compose", "gen_proto", "parser", "printer", "utils", "version_converter")
    code = f"for name in {names}: print(name, *sorted(n for n in dir(getattr(onnx, name)) if n[0] != '_'))"
    assert _run(f"import graphopt.ir, onnx\n{_USE}{code}") == _run(f"import onnx\n{code}")


#: Uses an attribute of each module.
_USE = (
    "onnx.compose.merge_models, onnx.gen_proto.main, onnx.parser.parse_model, onnx.printer.to_text\n"
    "onnx.utils.extract_model, onnx.version_converter.convert_version\n"
)


def test_threads_wait_for_the_execution() -> None:
    code = (
        "import graphopt.ir, onnx\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = [pool.submit(lambda: onnx.compose.merge_models) for _ in range(8)]\n"
        "print(len({one.result() for one in found}))\n"
    )
    assert _run(code) == ["1"]


def test_a_missing_attribute_is_an_error() -> None:
    code = "import graphopt.ir, onnx; print(hasattr(onnx.compose, 'missing'), onnx.compose.__name__)"
    assert _run(code) == ["False onnx.compose"]
