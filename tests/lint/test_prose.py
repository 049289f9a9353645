"""Pages, docstrings and comments contain none of the phrases that docs/style.md replaces."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import graphopt

ROOT = Path(graphopt.__file__).parent
REPOSITORY = ROOT.parent

#: Phrases without a correct use in the project's prose, and their replacements.
_PHRASES = {
    r"\bof which\b": "a second sentence",
    r"(?<!long )(?<!soon )\bas it is\b": "nothing",
    r"\ball the same\b": "nothing",
    r"\bin which case\b": "a second sentence, or 'then'",
    r"\bso as to\b": "'to'",
    r"\bin question\b": "the noun",
    r"\banother one\b": "the noun",
    r"\bof course\b|\bsimply\b|(?<!was )\bjust\b|(?<!a )\b[Nn]ote that\b": "nothing",
    r"\ba lot\b|\bin vain\b|\bends? up\b|\bgiven up\b": "the plain verb",
    r"\bhence\b|\bthere(by|of|in)\b|\bwhere(by|in|of)\b": "'therefore', or a second sentence",
    r"\b(what|wh(at|ich|o)ever)\b(?!:)": "the noun",
    r"\b(said|says|tells|told|knows|asks)\b": "'describes', 'reports', 'requests', 'has'",
    r"\b(goes|comes|stands|gets)\b": "the field's verb: 'returns', 'precedes', 'receives'",
    r"\b(believes|hopes|blames|wants)\b": "the function, and its check or result",
}
#: Maximum number of words between full stops, colons and semicolons, without parentheses.
_WORDS = 45


def _without_code(text: str) -> str:
    """``text`` without tables of docstrings, code, link targets and quotations, and with its lines."""
    for code in (r"^=+ .*^=+ [= ]*$", r"^ *```.*?^ *```", r"(`+)[^`]+\1", r"\]\([^)]*\)", r'"[^"\n]*"'):
        text = re.sub(code, lambda found: "x" + "\n" * found[0].count("\n"), text, flags=re.S | re.M)
    return text


def _pages() -> Iterator[tuple[Path, int, str]]:
    """Paragraphs of the pages, with their lines; of the changelog, those of the next release."""
    pages = [*sorted((REPOSITORY / "docs").glob("*.md")), *sorted(REPOSITORY.glob("*.md"))]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        if path.name == "style.md":  # it lists the phrases
            continue
        if path.name == "CHANGELOG.md":
            text = re.split(r"^## \[?\d", text, maxsplit=1, flags=re.M)[0]
        yield from _paragraphs(path, 1, _without_code(text))


def _paragraphs(path: Path, line: int, text: str) -> Iterator[tuple[Path, int, str]]:
    """Paragraphs, entries of lists, and rows of tables."""
    start, lines = line, list[str]()
    for number, row in enumerate([*text.split("\n"), ""], line):
        starts = re.match(r"\s*([-*|#>=]|\d+\.|\w+: )", row)
        if not row.strip() or starts:
            if lines:
                yield path, start, " ".join(lines)
            start, lines = number, []
        if row.strip() and not row.lstrip().startswith((">>>", "...", "==")):
            lines.append(row.strip())


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Each comment, with its line; comments of adjacent lines are one."""
    start, last, lines = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and lines:
                yield start, "\n".join(lines)
                lines = []
            start = start if lines else token.start[0]
            last = token.start[0]
            lines.append(token.string.lstrip("#: "))
    if lines:
        yield start, "\n".join(lines)


def _sources() -> Iterator[tuple[Path, int, str]]:
    """Paragraphs of docstrings and comments, with their lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield from _paragraphs(path, node.body[0].lineno, _without_code(text))
        for line, text in _comments(source):
            yield from _paragraphs(path, line, _without_code(text))


@cache
def _paragraphs_of_the_project() -> tuple[tuple[Path, int, str], ...]:
    return *_pages(), *_sources()


def test_phrases_with_a_replacement_are_absent() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {match[0]!r}: write {instead}"
        for path, line, text in _paragraphs_of_the_project()
        for phrase, instead in _PHRASES.items()
        for match in re.finditer(phrase, text)
    ]
    assert not found, "\n".join(found)


def test_sentences_are_short() -> None:
    found = []
    for path, line, text in _paragraphs_of_the_project():
        if text.startswith("|"):
            continue
        plain = re.sub(r"\([^()]*\)", "", text)
        for part in re.split(r"[.:;]\s", plain):
            if (words := len(part.split())) > _WORDS:
                found.append(f"{path.relative_to(REPOSITORY)}:{line}: {words} words: {part[:80]}…")
    assert not found, "\n".join(found)
