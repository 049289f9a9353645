"""Sources in C have short lines."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The longest line, in columns.
_LONGEST = 124


def test_lines_are_short() -> None:
    files = [path for folder in ("graphopt", "samples") for path in sorted((ROOT / folder).rglob("*.[ch]"))]
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > _LONGEST
    ]
    assert len(files) > 40 and not long
