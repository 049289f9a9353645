"""Output about variants, in a bundle or as branches of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.cli.options import option_values
from graphopt.cli.output.console import Console
from graphopt.errors import ExitStatus, GraphoptError, UsageError
from graphopt.util.text_tables import Table, counted, human_bytes

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.cli.invocation import Run
    from graphopt.profile import Guard
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.specialization.variant_sizes import Item

#: Number of inputs whose assumptions are listed without -v.
_LISTED = 6


def told_choice(bundle: Bundle, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The variant that runs for ``feeds``, and why others do not, for JSON."""
    return {"variant": bundle.choose(feeds), "reasons": bundle.explain(feeds)}


def print_choice(console: Console, bundle: Bundle, feeds: Mapping[str, Any], *, verbose: bool) -> None:
    """Print the same as text; the reasons only if ``verbose``."""
    name = bundle.choose(feeds)
    console.note(f"  variant   {name}")
    for other, reasons in bundle.explain(feeds).items() if verbose else ():
        if other != name:
            console.note(f"  not {other}: {'; '.join(reasons) or f'{name} comes first'}")


def show(run: Run, bundle: Bundle) -> None:
    """Print the contents of ``bundle``."""
    from graphopt.specialization.bundle.plan import PLAN
    from graphopt.specialization.variant_sizes import measured, of_bundle

    items = of_bundle(bundle)
    if run.verbose:
        device = option_values.chosen_device(run, explains_auto=False)
        with run.console.progress("measuring sessions"):
            items = measured(items, bundle, device)
    plan, sizes, checked = bundle.plan, bundle.sizes, bundle.check()
    run.console.json(
        {
            "path": str(bundle.folder),
            "model": plan.model,
            "versions": plan.versions,
            "files": sizes,
            "checked": checked,
            "inputs": plan.to_dict()["inputs"],
            "outputs": plan.to_dict()["outputs"],
            "variants": [item.to_dict() for item in items],
        }
    )
    if run.console.as_json:
        return
    run.console.print(f"{bundle.folder}", bold=True)
    facts = Table(["", ""], "<<")
    all_bytes = sum(sizes.values()) + (bundle.folder / PLAN).stat().st_size
    facts.add("bundle", f"{human_bytes(all_bytes)} in {counted(len(sizes) + 1, 'file')}")
    if plan.weights is not None:
        facts.add("weights", f"{human_bytes(sizes[plan.weights])} in {plan.weights}")
    facts.add(
        "checksums",
        "right" if checked else "those of an older graphopt, which do not cover all files; write it again",
    )
    facts.add("made with", ", ".join(f"{name} {text}" for name, text in plan.versions.items()))
    facts.add("original", f"of fingerprint {plan.model}")
    run.console.table(facts)
    run.console.print()
    ports = Table(["", "name", "type", ""], "<<<<")
    for what, found in (("input", plan.signature.inputs), ("output", plan.signature.outputs)):
        for port in found:
            ports.add(what, port.name, port, "" if port.role == "required" else port.role)
    run.console.table(ports)
    print_variants(run.console, items, verbose=bool(run.verbose))


def branches(run: Run, path: Path, model: ir.Model) -> tuple[list[Item], int | None]:
    """The variants among the branches of ``model``, and with -v the bytes of its session, if any."""
    from graphopt.specialization.variant_records import read_variants

    plan = read_variants(model)
    if not plan:
        return [], None
    from graphopt.specialization.variant_sizes import of_model, session_bytes

    items = of_model(model, plan)
    if not items or not run.verbose:
        return items, None
    device = option_values.chosen_device(run, explains_auto=False)
    try:
        with run.console.progress("measuring a session"):
            return items, session_bytes(model, path, device)
    except GraphoptError as failure:
        run.console.note(f"  the memory of a session is not known: {failure.message}")
        return items, None


def print_variants(console: Console, items: Sequence[Item], *, verbose: bool) -> None:
    """Print a line with the assumptions of each variant; nothing if there are no variants."""
    if not items:
        return
    console.print()
    is_measured = any(item.session_bytes is not None for item in items)
    heads = ["variant", "nodes", "runs", "weights shared", "own", *(["session"] if is_measured else [])]
    table = Table([*heads, "where"], "<" + ">" * (len(heads) - 1) + "<")
    for item in items:
        figures: list[object] = [
            item.name,
            f"{item.nodes:,}",
            "" if item.runs is None else f"{item.runs:,}",
            human_bytes(item.shared),
            human_bytes(item.own),
        ]
        if is_measured:
            figures.append("–" if item.session_bytes is None else human_bytes(item.session_bytes))
        for line in _assumed(item.guard, None if verbose else _LISTED):
            table.add(*figures, line)
            figures = [""] * len(figures)
    console.table(table)


def verify(run: Run, original: Path, candidate: Path, *, signature: bool) -> int:
    """Compare each variant with the original where its guard holds, and the general model everywhere."""
    from graphopt import api
    from graphopt.instrument.report import verdict_dict, verdict_lines
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.specialization.bundle.plan import GENERAL_NAME
    from graphopt.specialization.specialize_inputs import specialize_inputs

    if "dims" in run.options or "dim_ranges" in run.options:
        raise UsageError("--dim and --dim-range are about models: a bundle is compared at all of its sizes")
    bundle, model = Bundle(candidate), api.load_model(original)
    bundle.check()
    option_values.chosen_device(run)
    guards = {variant.name: variant.guard for variant in bundle.plan.variants}
    found = {}
    for name in bundle.names:
        with run.console.progress(f"verifying {name}"):
            compiler = run.compiler if name == GENERAL_NAME else run.compiler.without("inputs")
            verdict = compiler.verify(
                specialize_inputs(model, guards[name]) if name in guards else model,
                bundle.model(name),
                numerics=compiler.numerics,
                signature=signature,
                bits=run.settings.exact,
            )
        found[name] = verdict
        run.console.print(f"  {name}", "title")
        run.console.blocks(verdict_lines(verdict))
    equal = all(verdict.ok and verdict.unverifiable is None for verdict in found.values())
    run.console.json(
        {"equal": equal, "variants": {name: verdict_dict(verdict) for name, verdict in found.items()}}
    )
    return ExitStatus.OK if equal else ExitStatus.VERIFICATION_FAILED


def _assumed(guard: Guard | None, most: int | None) -> list[str]:
    """The assumptions of a guard, one line per input."""
    if guard is None:
        return ["for all other inputs"]
    lines = [f"{name}: {seen}" for name, seen in guard.inputs.items()]
    lines += [f"{name} is not fed" for name in guard.absent]
    if most is not None and len(lines) > most:
        lines[most:] = [f"and {counted(len(lines) - most, 'input')} more (-v lists all)"]
    return lines or ["always"]
