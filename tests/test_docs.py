"""Generated pages are up to date, and links in the documentation have targets."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from graphopt.passes.pipelines import registry
from graphopt.rules import all_rules

DOCS = Path(__file__).parent.parent / "docs"


def _generator() -> object:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    ["../CONTRIBUTING.md", "passes.md", "rules.md", "fusions.md", "pipelines.md", "peers.md", "gradients.md"],
)
def test_generated_pages_are_fresh(name: str) -> None:
    assert (DOCS / name).read_text() == _generator().PAGES[name](), "run python docs/generate.py"  # type: ignore[attr-defined]


def test_every_fusion_has_a_refused_near_miss() -> None:
    matrix = _generator().fusion_matrix()  # type: ignore[attr-defined]
    assert matrix
    one_sided = [cell for cell, tested in matrix.items() if not tested.fused or not tested.refused]
    assert one_sided == [], "a dialect needs a case and a near miss"


def test_table_of_fused_operators_lists_requirements() -> None:
    rows = _generator().fused_operators()  # type: ignore[attr-defined]
    assert "attention, no mask" in rows["Attention"].patterns
    assert rows["com.microsoft.SkipLayerNormalization"].devices == {"cuda"}
    assert {"Transpose", "Unsqueeze", "Constant"}.isdisjoint(rows)
    page = (DOCS / "fusions.md").read_text()
    assert "| `LayerNormalization` | 17 |" in page and "| `Attention` | 23 |" in page


def test_all_optimizations_of_other_tools_have_a_counterpart_or_a_reason() -> None:
    assert _generator().gaps() == []  # type: ignore[attr-defined]


def _anchor(heading: str) -> str:
    """The anchor of a heading: its words in lower case, joined by ``-``."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _leads_somewhere(page: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    there = page.parent / file if file else page
    if not there.exists() or not anchor:
        return there.exists()
    headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
    return anchor in map(_anchor, headings)


def test_links_between_pages_exist() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]
        for target in re.findall(r"\]\(([^):\s]+)\)", page.read_text())
        if not _leads_somewhere(page, target)
    ]
    assert broken == []


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)", (DOCS / "index.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} == listed | {"index.md"}


def test_the_glossary_is_short_sorted_and_names_modules_that_exist() -> None:
    rows = re.findall(
        r"^\| ([\w -]+) \|.*\| `([\w.]+)` \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE
    )
    terms = [term for term, _ in rows]
    assert 20 < len(terms) <= 40 and terms == sorted(terms, key=str.lower)
    assert [module for _, module in rows if importlib.util.find_spec(module) is None] == []


def test_files_that_pages_name_exist() -> None:
    root = DOCS.parent
    path = re.compile(r"`((?:benchmarks|docs|graphopt|samples|tests)/[\w./-]+)`")
    pages = [page for page in [*DOCS.glob("*.md"), *root.glob("*.md")] if page.name != "CHANGELOG.md"]
    named = {(page.name, name) for page in pages for name in path.findall(page.read_text())}
    assert len(named) > 30
    assert sorted((page, name) for page, name in named if not (root / name).exists()) == []


def test_links_to_headings() -> None:
    assert _leads_somewhere(DOCS / "cli.md", "architecture.md#adding-things")
    assert _leads_somewhere(DOCS / "architecture.md", "#adding-things")
    assert not _leads_somewhere(DOCS / "cli.md", "architecture.md#removing-things")
    assert _anchor("`-O1`: [a](b.md), and *more*") == "-o1-a-and-more"


def test_reasons_against_peer_passes_name_existing_passes() -> None:
    generator = _generator()
    known = {*registry().passes, *(rule.name for rule in all_rules())}
    reasons = [
        reason
        for sections in generator.peers().values()  # type: ignore[attr-defined]
        for section in sections.values()
        for reason in section.values()
    ]
    names = {name for reason in reasons for name in re.findall(r"`([a-z][a-z-]+)`", reason)}
    assert names and names <= known
    assert not [reason for reason in reasons if "planned" in reason]
