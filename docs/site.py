"""Hooks of mkdocs: the navigation, pages at the root of the repository, links, and the API reference."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
#: Pages of the site that are files at the root of the repository.
ROOT_PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation of the sections and links of docs/index.md."""
    nav: list[dict[str, Any]] = [{"Home": "index.md"}, {"Overview": "overview.md"}]
    for section in re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        pages = []
        for _, text, target in _LINK.findall(body):
            found = _page_of(DOCS / target.partition("#")[0])
            if found is not None:
                pages.append({text[0].upper() + text[1:]: found})
        nav.append({title.strip(): pages})
    nav.append({"Python API": [{page.title: page.uri} for page in reference()]})
    config.nav = nav
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages at the root of the repository, and the API reference."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for made in reference():
        files.append(File.generated(config, made.uri, content=made.text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages, or to ``repo_url``."""
    source = next((ROOT / name for name, to in ROOT_PAGES.items() if to == page.file.src_uri), None)
    folder = ROOT if source else (DOCS / page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        there = folder / path
        found = _page_of(there)
        if found is not None:
            here = os.path.dirname(page.file.src_uri)
            return f"{image}[{text}]({os.path.relpath(found, here)}{mark}{anchor})"
        if config.repo_url:
            inside = os.path.relpath(there, ROOT)
            return f"{image}[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{inside}{mark}{anchor})"
        return text

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


class Reference(NamedTuple):
    """A page of the API reference."""

    title: str
    uri: str
    text: str


@functools.cache
def reference() -> tuple[Reference, ...]:
    """The pages of the API reference: the public names of graphopt, by kind."""
    import graphopt

    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in graphopt.__all__:
        value = getattr(graphopt, name)
        module = getattr(value, "__module__", "")
        if not callable(value) or not module.startswith("graphopt"):
            continue  # a submodule, a constant, or a class of onnx-ir
        error = isinstance(value, type) and issubclass(value, Exception)
        # a module and a function of one name: griffe finds the module
        path = f"{module}.{name}" if module.endswith(f".{name}") else f"graphopt.{name}"
        kinds["Errors" if error else "Classes" if isinstance(value, type) else "Functions"].append(path)
    pages = []
    for title, paths in kinds.items():
        text = f"# {title}\n\n" + "".join(f"::: {path}\n\n" for path in sorted(paths, key=_last))
        pages.append(Reference(title, f"reference/{title.lower()}.md", text))
    return tuple(pages)


def _last(path: str) -> str:
    return path.rpartition(".")[2].lower()


def _page_of(path: Path) -> str | None:
    """The page of the site that the file ``path`` is, if it is one."""
    path = Path(os.path.normpath(path))
    if path.parent == ROOT:
        return ROOT_PAGES.get(path.name)
    return path.relative_to(DOCS).as_posix() if path.suffix == ".md" and path.is_relative_to(DOCS) else None
