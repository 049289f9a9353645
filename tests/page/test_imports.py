"""Modules of pages are imported only to write a page."""

from __future__ import annotations

import subprocess
import sys


def test_other_operations_import_no_pages() -> None:
    code = (
        "import sys, graphopt.api; print([name for name in sys.modules if name.startswith('graphopt.page')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
