"""Generate pages and tables from the code: passes, rules, fusions, pipelines, and examples of recipes.

Usage: python docs/generate.py [--check]
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from onnx import defs

from graphopt import config
from graphopt.cost import Costs, shipped
from graphopt.diagnostics.events import COMMON, EVENTS, OF_END, json_schema
from graphopt.diagnostics.hint import HINTS
from graphopt.optimize_options import OPTIONS
from graphopt.passes.pass_descriptions import options_of, prose
from graphopt.passes.pipelines import PIPELINES, SUMMARIES, registry
from graphopt.rules import all_rules

DOCS = Path(__file__).parent
CASES = DOCS.parent / "tests" / "rules" / "cases"
sys.path.insert(0, str(DOCS.parent))  # for tests.rules, which reads the cases


def passes_page() -> str:
    """Every pass with its options."""
    lines = [
        "# Passes",
        "",
        "Generated from the code by `python docs/generate.py`. `graphopt passes` prints the same text.",
        "",
    ]
    for name, kind in sorted(registry().passes.items()):
        lines += [f"## {name}", "", prose(kind), ""]
        options = options_of(kind)
        if options:
            lines += ["| option | default | meaning |", "|---|---|---|"]
            lines += [f"| `{one.name}` | `{one.default_text}` | {_cell(one.meaning)} |" for one in options]
            lines.append("")
        rules = sorted({rule.family for rule in all_rules() if rule.pass_ == name})
        if rules:
            lines += [
                f"[Rules](rules.md): {', '.join(f'[{family}](rules.md#{family})' for family in rules)}",
                "",
            ]
        if kind.tags:
            lines += [f"Elsewhere: {', '.join(f'`{tag}`' for tag in kind.tags)}", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rules_page() -> str:
    """Every rewrite rule by family, with its names in other optimizers."""

    lines = [
        "# Rewrite rules",
        "",
        "Generated from the code by `python docs/generate.py`. Each rule replaces the left-hand side of its",
        "formula by the right-hand side. The pass `fuse-builtin` applies the rules that write fused",
        "operators, and `peephole` most others. *Numerics* is the",
        "[effect on numerical results](write-a-rule.md#numerics), and *elsewhere* lists the names of the",
        "rewrite in other optimizers.",
        "",
    ]
    families: dict[str, list[str]] = {}
    for rule in all_rules():
        also = ", ".join(f"`{tag}`" for tag in rule.tags)
        summary = _cell(rule.summary)
        row = f"| `{rule.name}` | {summary} | {rule.numerics.name.lower()} | `{rule.pass_}` | {also} |"
        families.setdefault(rule.family, []).append(row)
    for family, rows in sorted(families.items()):
        lines += [
            f"## {family}",
            "",
            *_example(family),
            "| rule | rewrite | numerics | pass | elsewhere |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(lines)


def _example(family: str) -> list[str]:
    """The shortest case of ``family`` that is rewritten, before and after."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((CASES / family).glob("*.txt"))]
    cases = ["\n".join(line for line in text.splitlines() if not line.startswith("#")) for text in texts]
    rewritten = [case for case in cases if "\n=>" in case and "=> unchanged" not in case]
    return [] if not rewritten else ["```", min(rewritten, key=len).strip(), "```", ""]


class Tested(NamedTuple):
    """The case files of one pattern in one dialect, fused cases and near misses."""

    fused: list[str]
    refused: list[str]


def fusion_matrix() -> dict[tuple[str, str], Tested]:
    """The rule cases with headers ``# dialect:`` or ``# near-miss:``, by pattern and dialect.

    The header ``# pattern:`` of a case overrides the pattern of its rule.
    """
    patterns = {rule.name: rule.pattern for rule in all_rules()}
    found: dict[tuple[str, str], Tested] = {}
    for path in sorted(CASES.glob("*/*.txt")):
        notes = re.findall(r"^# ([\w-]+): (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        rule = next(value for key, value in notes if key == "rule")
        pattern = next((value.strip() for key, value in notes if key == "pattern"), patterns[rule] or rule)
        for key, dialect in notes:
            if key in ("dialect", "near-miss"):
                cell = found.setdefault((pattern, dialect.strip()), Tested([], []))
                (cell.fused if key == "dialect" else cell.refused).append(f"{path.parent.name}/{path.stem}")
    return found


class Made(NamedTuple):
    """The patterns that produce a fused operator, and the devices of their cases."""

    patterns: list[str]
    devices: set[str]


def fused_operators() -> dict[str, Made]:
    """By operator, the patterns whose cases produce it."""
    from tests.rules import rule_cases

    found: dict[str, Made] = {}
    for (pattern, _), tested in sorted(fusion_matrix().items()):
        for case in tested.fused:
            text = (CASES / f"{case}.txt").read_text(encoding="utf-8")
            for op in rule_cases.fused_in(rule_cases.read_case(CASES / f"{case}.txt")):
                made = found.setdefault(op, Made([], set()))
                if pattern not in made.patterns:
                    made.patterns.append(pattern)
                made.devices.update(re.findall(r"^# device: (\w+)", text, re.MULTILINE) or ["any"])
    return found


def _since(op: str) -> int | str:
    """The opset version that introduced a standard operator; empty for onnxruntime's own in this domain."""
    known = [schema.since_version for schema in defs.get_all_schemas_with_history() if schema.name == op]
    return min(known, default="")


def _operators_table() -> list[str]:
    """The requirements of each fused operator."""
    lines = [
        "The table lists the fused operators and their requirements. Operators of `com.microsoft` exist only",
        "in onnxruntime: they require no opset, and `--portable` excludes them. The same holds for",
        "`SimplifiedLayerNormalization`, which onnxruntime adds to the standard's domain (and not to",
        "`com.microsoft`), and which onnx.checker rejects. From opset 23 on, RMSNorm becomes the standard's",
        "`RMSNormalization`; below, `--portable` keeps the original nodes, which pass the checker. Default",
        "sessions fuse these nodes to the same operator (runs take equally long), but their creation and",
        "runs without onnxruntime's optimizations take longer. Operators of the standard require an opset;",
        "`--target-opset` converts a model to it. The column *device* has an entry if the shipped",
        "[costs](cost.md) select the operator only on this device.",
        "",
        "| operator | from opset | device | patterns |",
        "|---|---|---|---|",
    ]
    for op, made in sorted(fused_operators().items()):
        since = "" if "." in op else str(_since(op))
        device = "CUDA" if made.devices == {"cuda"} else ""
        lines.append(
            f"| `{op}` | {since} | {device} | {_cell('; '.join(sorted(made.patterns, key=str.lower)))} |"
        )
    return lines


def fusions_page() -> str:
    """The recognized patterns by dialect, from the cases of rules; measurements on models are kept."""
    matrix = fusion_matrix()
    patterns = sorted({pattern for pattern, _ in matrix}, key=str.lower)
    spoken: dict[str, list[str]] = {}
    for pattern, dialect in sorted(matrix):
        spoken.setdefault(dialect, []).append(pattern)
    dialects = [dialect for dialect, found in sorted(spoken.items()) if len(found) > 1]
    lines = [
        "# Fusions",
        "",
        "This page lists the tested fusions. `python docs/generate.py` generates the tables from the headers",
        "`# dialect:` and `# near-miss:` of the cases in `tests/rules/cases`. A cell has two numbers, for a",
        "pattern in a dialect: the forms that must be fused, and the near misses that must be refused",
        "because one condition does not hold. [Rules](rules.md) describes the results, and",
        "[`graphopt explain`](explain.md) reports missed fusions of a model.",
        "",
        "| pattern | " + " | ".join(dialects) + " |",
        "|---" * (len(dialects) + 1) + "|",
    ]
    for pattern in patterns:
        told = [_told(matrix.get((pattern, dialect))) for dialect in dialects]
        if any(told):
            lines.append(f"| {_cell(pattern)} | {' | '.join(told)} |")
    own = [(pattern, dialect) for pattern, dialect in sorted(matrix) if dialect not in dialects]
    if own:
        lines += [
            "",
            "Some dialects have a single pattern:",
            "",
            "| pattern | form | tested |",
            "|---|---|---|",
        ]
        lines += [f"| {_cell(one[0])} | {_cell(one[1])} | {_told(matrix[one])} |" for one in own]
    return "\n".join([*lines, "", *_operators_table(), "", *_counted(DOCS / "fusions.md")])


def _told(cell: Tested | None) -> str:
    return f"{len(cell.fused)} / {len(cell.refused)}" if cell else ""


def _counted(page: Path) -> list[str]:
    """The lines of ``page`` from its second heading on, which benchmarks write."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    _, heading, rest = text.partition("\n## ")
    return [heading.strip() + " " + rest] if heading else []


def cost_page() -> str:
    """The page on costs, with the shipped figures for CPUs between its markers."""
    costs = shipped("cpu")
    refusal = costs.weigh("SkipLayerNormalization", rows=512).reason
    figures = ["| operator | case | least | most |", "|---|---|---|---|"]
    figures += [
        f"| `{grid.op}` | {grid.case} | {min(grid.ratios):.2f} | {max(grid.ratios):.2f} |"
        for grid in costs.grids
    ]
    made = {
        "refusal": ["```", f"  {refusal}", "```"],
        "figures": [f"With {costs.where}:", "", *figures],
        "joined products": [f"  {line}" for line in _joined_products(costs)],
    }
    return _marked("cost.md", made)


def cli_page() -> str:
    """The page on the command line, with the table of settings."""
    lines = ["| key | meaning | default |", "|---|---|---|"]
    lines += [
        f"| `{key}` | {_cell(about)} | `{config.shown(default)}` |"
        for key, default, about in config.describe()
    ]
    return _marked("cli.md", {"settings": lines, "exclusions": _exclusions()})


def _exclusions() -> list[str]:
    """The table of options of ``graphopt optimize`` that exclude each other."""
    from graphopt.cli.commands.optimize import command
    from graphopt.cli.options.table_options import exclusions

    rows = [f"| `{one}` | `{other}` | {why} |" for (one, other), why in exclusions(command).items()]
    return ["| option | excludes | remark |", "|---|---|---|", *rows]


def settings_page() -> str:
    """The page on settings, with the table of options of the CUDA provider."""
    from graphopt.util.cuda_options import CUDA_OPTIONS

    lines = ["| key | flag | effect | values | onnxruntime's default |", "|---|---|---|---|---|"]
    for name, option in CUDA_OPTIONS.items():
        flag = f"`{option.flag}`" if option.flag else ""
        values = ", ".join(f"`{word}`" for word in option.choices) or (
            "bytes" if option.is_size else "number"
        )
        lines.append(f"| `{name}` | {flag} | {_cell(option.help)} | {values} | {option.default_name} |")
    return _marked("settings.md", {"CUDA options": lines})


def python_page() -> str:
    """The page on Python, with the table of options."""
    lines = ["| keyword | command line | meaning | default |", "|---|---|---|---|"]
    for name, opt in OPTIONS.items():
        flag = f"`{opt.flag}`" if opt.flag else ""
        default = f"`{config.shown(opt.default)}`" if opt.default is not None else ""
        lines.append(f"| `{name}` | {flag} | {_cell(opt.help)} | {default} |")
    return _marked("python.md", {"options": lines})


def robustness_page() -> str:
    """The page on robustness, with the table of the behaviour of onnxruntime that modules depend on."""
    rows = [f"| `{path}` | {_cell(sentence)} |" for path, sentence in ort_behaviour()]
    return _marked("robustness.md", {"onnxruntime": ["| module | onnxruntime |", "|---|---|", *rows]})


def ort_behaviour() -> list[tuple[str, str]]:
    """Docstrings and comments that name a version of onnxruntime, from there to the end of the paragraph."""
    found = []
    for path in sorted((DOCS.parent / "graphopt").rglob("*.py")):
        for paragraph in _paragraphs(path.read_text(encoding="utf-8")):
            sentences = re.split(r"(?<=\.) ", paragraph)
            first = next((i for i, text in enumerate(sentences) if _ORT_VERSION.search(text)), None)
            if first is not None:
                found.append((path.relative_to(DOCS.parent).as_posix(), " ".join(sentences[first:])))
    return found


_ORT_VERSION = re.compile(r"\bonnxruntime\S*( optimizer)? \(?\d+\.\d+")


def _paragraphs(source: str) -> list[str]:
    """The paragraphs of docstrings and comments, each in one line, with the list that it introduces."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            found += re.split(r"(?<!:)\n\n", ast.get_docstring(node) or "")
    comments = re.findall(r"(?:^ *#.*\n)+", source, re.MULTILINE)
    found += [re.sub(r"^ *#:? ?", "", comment, flags=re.MULTILINE) for comment in comments]
    return [re.sub(r"\s+(- )?", " ", paragraph).strip().replace("``", "`") for paragraph in found]


def _marked(page: str, made: dict[str, list[str]]) -> str:
    """The text of ``page`` with the lines ``made`` between the markers of their names."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, lines in made.items():
        mark = f"<!-- made: {name} -->"
        before, _, rest = text.partition(mark)
        text = "\n".join([before + mark, *lines, "<!-- end -->" + rest.partition("<!-- end -->")[2]])
    return text


def _joined_products(costs: Costs) -> list[str]:
    """The ratio of the time of a joined product to that of separate products, by width and rows."""
    grid = costs.grid("batch-mm", "shared input")
    assert grid is not None
    axes = {axis.name: axis.sizes for axis in grid.axes}
    lines = [
        f"| width \\ rows | {' | '.join(map(str, axes['rows']))} |",
        "|---" * (len(axes["rows"]) + 1) + "|",
    ]
    for width in axes["width"]:
        at = [grid.at({"count": axes["count"][-1], "width": width, "rows": rows}) for rows in axes["rows"]]
        lines.append(f"| {width} | {' | '.join(f'{one.ratio:.2f}' for one in at)} |")
    return lines


def pipelines_page() -> str:
    """Every named pipeline."""
    lines = [
        "# Pipelines",
        "",
        "Generated from the code by `python docs/generate.py`. `graphopt pipelines show NAME` prints one.",
        "",
        "A pipeline is text: names of passes joined by commas, options in braces, and `fixpoint(...)`,",
        "which repeats its passes until a round changes nothing. `if-gradient(A,otherwise,B)` runs A if a",
        "value is annotated as requiring a gradient, and otherwise B. A pipeline may contain the name of",
        "another pipeline, whose passes then run in its place.",
        "",
        "`pre-passes` and `post-passes` mark the positions of the passes given by `--pre-pass` and",
        "`--post-pass`. In `no-grad`, pre-passes run before `specialize-types`, on profiled annotations, and",
        "post-passes run after `specialize-types`, on specialized types: in `optimize --profile` and in",
        "executors, this step specializes the model, and the preceding passes do not use profiled types.",
        "Pipelines without the step start from specialized types. In pipelines without positions, pre-passes",
        "run first and post-passes last.",
        "",
        "The lower-case pipelines correspond to the branches of PyTorch's JIT executor: `-noopt` without",
        "optimization, `-gradients` with gradients, `-builtin` with fused operators of onnxruntime. The JIT",
        "can restrict a fuser to known types; the rules of `fuse-builtin` always require known types. An",
        "executor without further specialization runs `plan-general`. Other executors run `plan-profiled`",
        "several times, and then a copy optimized by `plan-optimized`.",
        "[graphopt's own executor](executor.md#pipelines-of-the-jit) runs these pipelines with",
        '`pipelines="jit"`. By default, it creates all plans by one preset.',
        "",
        "The assumptions of `specialize-types` about inputs are checked before the run, either by the caller",
        "or by an If around the specialized and the general model. Assumptions about intermediate values are",
        "checked around groups of nodes, as in the JIT: `guard-groups` creates Ifs of specialized and",
        "general versions, and `lower-fallbacks` creates the nodes that check the assumptions; see",
        "[guards](architecture.md#guards).",
        "",
        "The pipelines `pre-grad`, `joint`, `post-grad`, `inference`, `training`, `freezing` and `ahead`",
        "correspond to those of `compile_fx` in PyTorch's Inductor. Their passes visit the bodies of If,",
        "Loop and Scan, and functions, so that no body needs a run of its own. The input of `training` is a",
        "joint graph, or one of the two models of a split. [Counterparts of compile_fx](compile-fx.md) lists",
        "the steps that are not passes.",
        "",
        "`tests/passes/golden/encoder/` has the graphs that the pipelines create from an encoder, with and",
        "without a profile and gradients; its `index.txt` names the file of each combination.",
        "",
    ]
    for name, text in PIPELINES.items():
        lines += [f"## {name}", "", f"{SUMMARIES[name][0].upper()}{SUMMARIES[name][1:]}.", ""]
        lines += ["```", text.replace(",", ", ") or "(nothing)", "```", ""]
    return "\n".join([*lines, ""])


def peers_page() -> str:
    """The optimizations of other tools, with their counterparts."""
    lines = [
        "# Optimizations of other tools",
        "",
        "Generated by `python docs/generate.py` from the tags of passes and rules and from `peers.toml`.",
        "The tables list each pass, pattern and fusion of onnxslim, onnxoptimizer, onnxscript and",
        "onnxruntime, with its counterpart in graphopt ([passes](passes.md) and [rules](rules.md)), or the",
        "reason for its absence.",
        "",
    ]
    done = done_by()
    for peer, sections in peers().items():
        names = [f"{peer}:{name}" for section in sections.values() for name in section]
        lines += [
            f"## {peer}",
            "",
            f"{sum(name in done for name in names)} of {len(names)} have a counterpart.",
            "",
        ]
        for title, section in sections.items():
            lines += [f"### {title}", "", "| optimization | graphopt |", "|---|---|"]
            for name, reason in section.items():
                here = ", ".join(f"`{owner}`" for owner in done.get(f"{peer}:{name}", ()))
                lines.append(f"| `{name}` | {here or reason} |")
            lines.append("")
    return "\n".join(lines)


def peers() -> dict[str, dict[str, dict[str, str]]]:
    """By optimizer and section, its optimizations, each with a reason if it has no counterpart here."""
    return tomllib.loads((DOCS / "peers.toml").read_text(encoding="utf-8"))


def done_by() -> dict[str, list[str]]:
    """By tag, the passes and rules that have it."""
    found: dict[str, list[str]] = {}
    for owner in (*registry().passes.values(), *all_rules()):
        for tag in owner.tags:
            found.setdefault(tag, []).append(owner.name)
    return found


def gaps() -> list[str]:
    """The differences between ``peers.toml`` and the tags of passes and rules."""
    listed = {
        f"{peer}:{name}": reason
        for peer, sections in peers().items()
        for section in sections.values()
        for name, reason in section.items()
    }
    done = done_by()
    nobody = [
        f"{name} is neither done nor explained"
        for name, why in listed.items()
        if not why and name not in done
    ]
    unlisted = [
        f"{tag}, a tag of {', '.join(owners)}, is not listed"
        for tag, owners in done.items()
        if tag not in listed
    ]
    return nobody + unlisted


def gradients_page() -> str:
    """The page on gradients, with the table of operators."""
    from graphopt.autodiff.rule_registry import Gradient, all_gradients

    text, _, _ = (DOCS / "gradients.md").read_text(encoding="utf-8").partition("## Operators")
    lines = [
        text.rstrip(),
        "",
        "## Operators",
        "",
        "Generated from the code by `python docs/generate.py`. x and y are the first input and the first",
        "output, and dy is the cotangent of y. Semicolons separate the gradients of several inputs.",
        "",
        "| family | operators | gradient |",
        "|---|---|---|",
    ]
    for family, items in all_gradients().items():
        for item in items:
            ops = ", ".join(f"`{op}`" for op in item.ops)
            what = item.summary if isinstance(item, Gradient) else f"none: {item.reason}"
            lines.append(f"| {family} | {ops} | {_cell(what)} |")
    return "\n".join([*lines, ""])


def contributing_page() -> str:
    """The recipes, with the code of their examples."""
    from docs import snippets

    return snippets.page(DOCS.parent / "CONTRIBUTING.md")


def diagnostics_page() -> str:
    """The page on diagnostics, with the tables of hints and events."""
    hints = [
        "| code | condition |",
        "|---|---|",
        *(f"| `{code}` | {_cell(text)} |" for code, text in HINTS.items()),
    ]
    common = ["| key | value |", "|---|---|"]
    common += [f"| `{field.name}` | {_cell(field.meaning)} |" for field in (*COMMON, *OF_END)]
    events = ["| event | meaning | other keys |", "|---|---|---|"]
    for name, event in EVENTS.items():
        keys = [f"`{field.name}` ({_phases(field.phases)}{_cell(field.meaning)})" for field in event.fields]
        events.append(f"| `{name}` | {event.meaning} | {'; '.join(keys)} |")
    return _marked("diagnostics.md", {"hints": hints, "common keys": common, "events": events})


def _phases(phases: tuple[str, ...]) -> str:
    return f"{phases[0]}: " if phases in (("start",), ("end",)) else ""


def trace_schema() -> str:
    """The JSON schema of the lines of a trace."""
    return json.dumps(json_schema(), indent=2) + "\n"


PAGES = {
    "../CONTRIBUTING.md": contributing_page,
    "passes.md": passes_page,
    "rules.md": rules_page,
    "fusions.md": fusions_page,
    "cost.md": cost_page,
    "cli.md": cli_page,
    "python.md": python_page,
    "settings.md": settings_page,
    "pipelines.md": pipelines_page,
    "peers.md": peers_page,
    "gradients.md": gradients_page,
    "diagnostics.md": diagnostics_page,
    "robustness.md": robustness_page,
    "trace-schema.json": trace_schema,
}


def main() -> int:
    """Write the pages, or with ``--check`` report stale pages and optimizations missing in ``peers.toml``."""
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    open_ = gaps() if "--check" in sys.argv else []
    if open_:
        print("\n".join(f"peers.toml: {gap}" for gap in open_), file=sys.stderr)
        return 1
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
