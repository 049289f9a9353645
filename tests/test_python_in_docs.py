"""Python examples of the documentation run in a fresh interpreter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "samples").glob("*.md")]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A call in the middle of a sentence: `graphopt.ir.schema()`.
CALLED = re.compile(r"`(graphopt(?:\.\w+)+)\(")

SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, code in enumerate(FENCED.findall(page.read_text()))
]
NAMES = sorted({name for page in PAGES for name in CALLED.findall(page.read_text())})

#: The last Add changes nothing but the sign of zeros, so that there is something to bisect for.
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) <float zero = {0.0}> {
  a = Identity(x)
  y = Add(a, zero)
}
"""


def _python(code: str, folder: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    _python(code.replace("budget=60", "budget=10"), tmp_path)


def test_functions_named_in_sentences_exist(tmp_path: Path) -> None:
    assert "graphopt.config.patch" in NAMES
    for name in NAMES:  # each in a fresh interpreter, as the first access
        _python(f"import graphopt\nassert callable({name})", tmp_path)


def test_unknown_names_are_attribute_errors(tmp_path: Path) -> None:
    _python(
        "import graphopt\nassert not hasattr(graphopt, 'nosuch')\nassert 'api' not in vars(graphopt)",
        tmp_path,
    )
