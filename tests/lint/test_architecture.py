"""The files and folders that docs/architecture.md names exist, in the packages that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import graphopt

ROOT = Path(graphopt.__file__).parent
PAGE = (ROOT.parent / "docs" / "architecture.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> Iterator[tuple[str, str]]:
    """The first two cells of each row of a table."""
    for line in text.splitlines():
        if line.startswith("| "):
            first, second = line.strip("| ").split(" | ")[:2]
            yield first, second


def names(text: str) -> list[str]:
    """The names of Python files and of folders in backticks."""
    return re.findall(r"`([\w./]+(?:\.py|/))`", text)


def identifies(package: str, name: str) -> bool:
    """Whether ``name`` is a path relative to ``package``, or to exactly one of its folders."""
    root = ROOT / package
    return (root / name).exists() or len(
        [path for path in root.rglob(name) if path.name != "__pycache__"]
    ) == 1


def test_each_layer_has_the_files_of_its_row() -> None:
    missing = []
    for layers, contents in rows(section("Layers")):
        for layer in names(layers):
            if not (ROOT / layer).exists():
                missing.append(layer)
            elif layer.endswith("/"):
                missing += [
                    f"{layer}: {name}"
                    for name in names(contents)
                    if not identifies(layer, name)
                    and not ("/" in name.rstrip("/") and (ROOT / name).exists())
                ]
    assert missing == []


def test_each_layer_has_a_row() -> None:
    listed = {name for layers, _ in rows(section("Layers")) for name in names(layers)}
    ours = {f"{path.name}/" for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    ours |= {path.name for path in ROOT.glob("*.py") if not path.name.startswith("__")}
    assert listed == ours


def test_each_starting_point_exists() -> None:
    missing = [
        name
        for _, places in rows(section("Starting points for changes"))
        for name in names(places)
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_each_path_of_the_page_exists() -> None:
    roots = (ROOT, ROOT.parent)
    paths = [name for name in names(PAGE) if "/" in name.rstrip("/")]
    assert [
        path for path in paths if not any((root / path).exists() or identifies(".", path) for root in roots)
    ] == []


def test_each_file_without_path_is_in_a_package_of_its_section() -> None:
    missing = []
    for title in re.findall(r"\n## (.*)\n", PAGE):
        found = names(section(title)) if title != "Layers" else []
        packages = {
            name.split("/")[0] for name in found if "/" in name and (ROOT / name.split("/")[0]).is_dir()
        }
        missing += [
            (title, name)
            for name in found
            if "/" not in name and not (ROOT / name).exists()
            if not any(identifies(package, name) for package in packages)
        ]
    assert missing == []
