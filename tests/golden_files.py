"""Golden files: expected texts, which ``--update-golden`` writes anew."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GoldenFiles:
    """Compares texts with golden files, or writes the files.

    Attributes:
        update: whether to write the files.
        tests: the test file that compares them.
    """

    update: bool
    tests: str

    def check(self, path: Path, text: str) -> None:
        """Assert that ``text`` equals the contents of ``path``."""
        if self.update:
            write(path, text)
        expected = path.read_text(encoding="utf-8") if path.exists() else None
        assert text == expected, f"{path.name} differs; {self.hint}"

    @property
    def hint(self) -> str:
        """The command that writes the files."""
        return f"if this is intended, run python -m pytest {self.tests} --update-golden, and review the difference"


def write(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` at once: another process of pytest may read the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
