"""Output about variants, in a bundle or as branches of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.cli.options import resolve_options
from graphopt.cli.output.command_output import Output
from graphopt.errors import GraphoptError
from graphopt.util.text_tables import Block, Line, Table, counted, human_bytes

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.cli.invocation import Run
    from graphopt.profile import Guard
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.specialization.bundle.manifest import BundleTarget
    from graphopt.specialization.variant_sizes import Item

#: Number of inputs whose assumptions are listed without -v.
_LISTED = 6


def choice_dict(bundle: Bundle, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The variant that runs for ``feeds``, and the reasons why others do not, for JSON."""
    return {"variant": bundle.choose(feeds), "reasons": bundle.explain(feeds)}


def choice_notes(bundle: Bundle, feeds: Mapping[str, Any], *, verbose: int) -> Iterator[str]:
    """The choice as text; the reasons only if ``verbose``."""
    name = bundle.choose(feeds)
    yield f"  variant   {name}"
    for other, reasons in bundle.explain(feeds).items() if verbose else ():
        if other != name:
            yield f"  not {other}: {'; '.join(reasons) or f'{name} precedes it'}"


def output(run: Run, bundle: Bundle) -> Output:
    """The contents of ``bundle``."""
    from graphopt.specialization.bundle.manifest import port_dict
    from graphopt.specialization.variant_sizes import measured, variant_sizes_of_bundle

    items = variant_sizes_of_bundle(bundle)
    if run.verbose:
        device = resolve_options.chosen_device(run, explains_auto=False)
        with run.console.progress("measuring sessions"):
            items = measured(items, bundle, device)
    manifest, checked = bundle.manifest, bundle.check()
    data = {
        "path": str(bundle.folder),
        "model": manifest.model,
        "format": manifest.version,
        "versions": dict(manifest.versions),
        "original": None if manifest.original is None else vars(manifest.original),
        "target": None if manifest.target is None else manifest.target.to_dict(),
        "kernels": [vars(library) for library in manifest.kernels],
        "operators": None if manifest.operators is None else vars(manifest.operators),
        "settings": dict(manifest.settings),
        "files": bundle.sizes,
        "checked": checked,
        "inputs": [port_dict(port) for port in manifest.signature.inputs],
        "outputs": [port_dict(port) for port in manifest.signature.outputs],
        "variants": [item.to_dict() for item in items],
    }
    return Output(data, [*_bundle_blocks(bundle, checked), *variant_blocks(items, run.verbose)])


def _bundle_blocks(bundle: Bundle, checked: bool) -> Iterator[Block]:
    from graphopt.cli.views.settings import summary_of
    from graphopt.recorded_settings import SettingsRecord

    manifest, sizes = bundle.manifest, bundle.sizes
    yield Line(f"{bundle.folder}", "title")
    facts = Table(["", ""], "<<")
    facts.add("bundle", _size(bundle))
    if manifest.weights is not None:
        facts.add("weights", f"{human_bytes(sizes[manifest.weights])} in {manifest.weights}")
    older = "written by an older graphopt, and do not cover all files; write the bundle again"
    facts.add("checksums", "correct" if checked else older)
    facts.add("versions", ", ".join(f"{name} {text}" for name, text in manifest.versions.items()))
    name = "" if manifest.original is None else f"{manifest.original.file}, "
    facts.add("original", f"{name}fingerprint {manifest.model}")
    if manifest.target is not None:
        facts.add("target", _target(manifest.target))
    for library in manifest.kernels:
        facts.add("kernels", f"{human_bytes(sizes[library.file])} in {library.file}")
    if manifest.operators is not None and manifest.operators.libraries:
        facts.add("needs", f"a library of operators of {', '.join(manifest.operators.libraries)}")
    if manifest.settings:
        facts.add("settings", summary_of(SettingsRecord.from_dict(dict(manifest.settings))))
    yield facts
    yield ""
    ports = Table(["", "name", "type", ""], "<<<<")
    for direction, found in (("input", manifest.signature.inputs), ("output", manifest.signature.outputs)):
        for port in found:
            ports.add(direction, port.name, port, "" if port.role == "required" else port.role)
    yield ports


def _size(bundle: Bundle) -> str:
    """The bytes of a bundle, and its form."""
    if bundle.folder.is_file():
        return f"{human_bytes(bundle.folder.stat().st_size)} in a zip file"
    sizes, manifest = bundle.sizes, bundle.folder / bundle.manifest.own_file
    return (
        f"{human_bytes(sum(sizes.values()) + manifest.stat().st_size)} in {counted(len(sizes) + 1, 'file')}"
    )


def _target(target: BundleTarget) -> str:
    """The target in one line."""
    words = [target.device, f"onnxruntime {target.onnxruntime}"]
    if target.machine is not None:
        level = "" if target.cpu_level is None else f"-v{target.cpu_level}"
        words.append(f"kernels for {target.system} on {target.machine}{level}")
    return ", ".join(words)


def branches(run: Run, path: Path, model: ir.Model) -> tuple[list[Item], int | None]:
    """The variants among the branches of ``model``, if any, and with -v the bytes of its session."""
    from graphopt.specialization.variant_records import read_variants

    plan = read_variants(model)
    if not plan:
        return [], None
    from graphopt.specialization.variant_sizes import session_bytes, variant_sizes_of_model

    items = variant_sizes_of_model(model, plan)
    if not items or not run.verbose:
        return items, None
    device = resolve_options.chosen_device(run, explains_auto=False)
    try:
        with run.console.progress("measuring a session"):
            return items, session_bytes(model, path, device)
    except GraphoptError as failure:
        run.console.note(f"  the memory of a session is unknown: {failure.message}")
        return items, None


def variant_blocks(items: Sequence[Item], verbose: int) -> Iterator[Block]:
    """A line with the assumptions of each variant; nothing if there are no variants."""
    if not items:
        return
    yield ""
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
        for line in _assumption_lines(item.guard, None if verbose else _LISTED):
            table.add(*figures, line)
            figures = [""] * len(figures)
    yield table


def _assumption_lines(guard: Guard | None, most: int | None) -> list[str]:
    """The assumptions of a guard, one line per input."""
    if guard is None:
        return ["for all other inputs"]
    lines = [f"{name}: {value}" for name, value in guard.inputs.items()]
    lines += [f"{name} is not fed" for name in guard.absent]
    if most is not None and len(lines) > most:
        lines[most:] = [f"and {counted(len(lines) - most, 'input')} more (-v lists all)"]
    return lines or ["always"]
