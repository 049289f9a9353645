"""Write the pages that are made from the code: passes, rules and pipelines.

Usage: python docs/generate.py [--check]
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from graphopt.pipelines import PIPELINES, SUMMARIES, registry
from graphopt.rules import all_rules

DOCS = Path(__file__).parent


def passes_page() -> str:
    """Every pass with its options."""
    lines = [
        "# Passes",
        "",
        "Made from the code by `python docs/generate.py`. `graphopt passes` prints the same.",
        "",
    ]
    for name, kind in sorted(registry().passes.items()):
        lines += [f"## {name}", "", inspect.cleandoc(kind.__doc__ or "").split("Attributes:")[0].strip(), ""]
        options = dataclasses.fields(kind)  # type: ignore[arg-type]
        if options:
            lines += ["| option | default |", "|---|---|"]
            lines += [f"| `{field.name.replace('_', '-')}` | `{field.default!r}` |" for field in options]
            lines.append("")
    return "\n".join(lines)


def rules_page() -> str:
    """Every rewrite rule by family, with what other optimizers call it."""

    lines = [
        "# Rewrite rules",
        "",
        "Made from the code by `python docs/generate.py`; the pass `peephole` applies them.",
        "*Numerics* tells what a rule does to the numbers (see [architecture](architecture.md)).",
        "",
    ]
    families: dict[str, list[str]] = {}
    for rule in all_rules():
        also = ", ".join(f"`{tag}`" for tag in rule.tags)
        summary = rule.summary.replace("|", "\\|")
        row = f"| `{rule.name}` | {summary} | {rule.numerics.name.lower()} | {also} |"
        families.setdefault(rule.family, []).append(row)
    for family, rows in sorted(families.items()):
        lines += [
            f"## {family}",
            "",
            "| rule | what | numerics | elsewhere |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(lines)


def pipelines_page() -> str:
    """Every named pipeline."""
    lines = [
        "# Pipelines",
        "",
        "Made from the code by `python docs/generate.py`. `graphopt pipelines show NAME` prints one.",
        "",
        "A pipeline is text: names of passes joined by commas, options in braces, and `fixpoint(...)`,",
        "which repeats its passes until a round changes nothing. The name of a pipeline stands for its",
        "passes. Steps that are named but not built yet are skipped, and the report says so.",
        "",
    ]
    known = registry()
    for name, text in PIPELINES.items():
        lines += [f"## {name}", "", f"{SUMMARIES[name][0].upper()}{SUMMARIES[name][1:]}.", ""]
        lines += ["```", text.replace(",", ", ") or "(nothing)", "```", ""]
    lines += ["## Not built yet", ""]
    lines += [f"- `{name}`: {what}" for name, what in sorted(known.planned.items())]
    return "\n".join([*lines, ""])


PAGES = {"passes.md": passes_page, "rules.md": rules_page, "pipelines.md": pipelines_page}


def main() -> int:
    """Write the pages, or with ``--check`` tell which are stale."""
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
