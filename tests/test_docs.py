"""The generated pages say what the code does, and links in the docs lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def _generator() -> object:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["passes.md", "rules.md", "pipelines.md", "peers.md"])
def test_generated_pages_are_fresh(name: str) -> None:
    assert (DOCS / name).read_text() == _generator().PAGES[name](), "run python docs/generate.py"  # type: ignore[attr-defined]


def test_all_that_other_optimizers_do_is_done_or_explained() -> None:
    assert _generator().gaps() == []  # type: ignore[attr-defined]


def test_links_between_pages_exist() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
