"""graphopt inspect: the contents of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.options import option_values, shared_options
from graphopt.util.text_tables import Table, counted, human_bytes, human_count

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.context import Options
    from graphopt.instrument.model_summary import Interface, Summary
    from graphopt.profile import Profile

EXAMPLE = """
graphopt inspect model.onnx
graphopt inspect model.onnx --json | jq .ops
graphopt inspect model.onnx -v --dim batch=4
graphopt inspect profile.json
graphopt inspect model.bundle -v
"""

#: Number of operators, functions and weights listed without -v.
_LISTED = 15


@command_decorator.command("inspect", example=EXAMPLE, section=Section.EVERYDAY, rank=3)
@shared_options.model_argument()
@shared_options.model_options
@shared_options.dim_options
def command(run: Run, model: Path) -> None:
    """Show the interface and the contents of a model.

    Lists inputs, outputs, versions, operators, weights and functions; -v lists all of them, with the largest
    weights and the estimated FLOPs. For a profile of graphopt profile, shows the recorded values. For
    variants, in a model or a bundle, shows their assumptions, nodes and weights, and with -v the memory of
    their sessions.
    """
    from graphopt import api
    from graphopt.cli.views import variants as views
    from graphopt.instrument.model_summary import Interface, Summary, external_bytes
    from graphopt.profile import Profile
    from graphopt.specialization.bundle.loaded_bundle import Bundle

    if Profile.is_at(model):
        _show_profile(run, Profile.read(model))
        return
    if api.is_bundle(model):
        option_values.check_idle(["Inputs"], "says nothing of a bundle", "leave it out")
        views.show(run, Bundle(model))
        return
    loaded = api.load_model(model)
    choices = run.compiler.vouched(loaded)
    summary, interface = Summary.of(loaded), Interface.of(loaded)
    external = external_bytes(loaded)
    flops, unknown = _flops(loaded, choices) if run.verbose else (None, 0)
    variants, session = views.branches(run, model, loaded)
    run.console.json(
        {
            "path": run.invocation.name_of(model),
            "file_bytes": model.stat().st_size,
            "producer": _producer(loaded),
            **interface.to_dict(),
            **summary.to_dict(),
            "function_names": [_function_name(function) for function in loaded.functions.values()],
            "external_data": external,
            "flops": flops,
            "variants": [item.to_dict() for item in variants],
            "session_bytes": session,
        }
    )
    if not run.console.as_json:
        outputs = _known_dims(loaded, choices)
        _print(run, model, loaded, summary, interface, external, outputs)
        views.print_variants(run.console, variants, verbose=bool(run.verbose))
        if session is not None:
            run.console.print(f"\n  memory of a session: {human_bytes(session)}")
        if flops is not None:
            but = f" (without {counted(unknown, 'node')} of unknown shape)" if unknown else ""
            run.console.print(f"\n  estimated FLOPs{but}: {flops}")


def _show_profile(run: Run, profile: Profile) -> None:
    from graphopt.cli.views.profiles import print_profile

    option_values.check_idle(["Inputs"], "says nothing of a profile", "leave it out")
    run.console.json(profile.to_dict())
    if not run.console.as_json:
        inputs = dict.fromkeys(name for pattern in profile.patterns for name in pattern.inputs)
        print_profile(run.console, profile, [*inputs], verbose=bool(run.verbose))


def _print(
    run: Run,
    path: Path,
    model: ir.Model,
    summary: Summary,
    interface: Interface,
    external: dict[str, int],
    outputs: list[Sequence[object] | None],
) -> None:
    from graphopt.ir.signature import notation

    show = run.console.print
    opsets = ", ".join(f"{domain} {version}" for domain, version in interface.opsets.items())
    show(run.invocation.name_of(path), bold=True)
    facts = Table(["", ""], "<<")
    facts.add("file", human_bytes(path.stat().st_size))
    for file, size in external.items():
        facts.add("external data", f"{human_bytes(size)} in {file}")
    facts.add("opsets", f"{opsets} (IR version {interface.ir_version})")
    if _producer(model):
        facts.add("producer", _producer(model))
    facts.add(
        "nodes", f"{summary.nodes:,}" + (f", and {summary.constants:,} Constant" if summary.constants else "")
    )
    facts.add("parameters", f"{human_count(summary.parameters)} ({human_bytes(summary.weight_bytes)})")
    if interface.symbols:
        facts.add("dynamic dims", " ".join(interface.symbols))
    for key, value in interface.metadata.items():
        facts.add(f"metadata {key}", value if len(value) <= 60 else f"{value[:57]}...")
    run.console.table(facts)
    show()
    listed = [port for port in interface.signature.inputs if port.role != "constant" or run.verbose]
    ports = Table(["", "name", "type", ""], "<<<<")
    for port in listed:
        text = notation(port.type, None if port.dims is None else port.named_dims)
        ports.add("input", port.name, text, "" if port.role == "required" else port.role)
    for port, dims in zip(interface.signature.outputs, outputs, strict=True):
        ports.add("output", port.name, notation(port.type, dims))
    run.console.table(ports)
    folded = len(interface.signature.inputs) - len(listed)
    if folded:
        what = counted(folded, "initializer is", "initializers are")
        show(f"  {what} listed as inputs too, as IR versions below 4 require (-v lists them)")
    show()
    _print_counts(run, "operator", list(summary.ops.items()))
    if model.functions:
        calls = Counter(node.op_identifier() for graph in _graphs(model) for node in graph)
        functions = Table(["function", "nodes", "calls"], "<>>")
        for key, function in _limited(run, list(model.functions.items())):
            functions.add(_function_name(function), len(function), calls[key])
        show()
        run.console.table(functions)
    if run.verbose:
        show()
        _print_weights(run, model)


def _flops(model: ir.Model, choices: Options) -> tuple[str, int]:
    """FLOPs of one run in terms of the dynamic dims, and the number of nodes that are not counted."""
    from graphopt import api
    from graphopt.analysis.cost import Cost

    cost = Cost.of(model.graph, api.context_for(model, choices).facts)
    return str(cost.flops), len(cost.unknown)


def _print_counts(run: Run, what: str, counts: list[tuple[str, int]]) -> None:
    table = Table([what, "count"], "<>")
    for name, count in _limited(run, counts):
        table.add(name, f"{count:,}")
    run.console.table(table)
    hidden = len(counts) - len(_limited(run, counts))
    if hidden:
        run.console.print(f"  and {counted(hidden, 'operator')} more (-v lists all)")


def _print_weights(run: Run, model: ir.Model) -> None:
    from graphopt import ir

    weights = [
        (value.name or "", value.const_value)
        for graph in ir.graphs_of(model)
        for value in graph.initializers.values()
        if value.const_value is not None
    ]
    table = Table(["largest weights", "type", "bytes"], "<<>")
    for name, tensor in sorted(weights, key=lambda item: -item[1].nbytes)[:_LISTED]:
        table.add(name, ir.type_text(tensor.dtype, tensor.shape.numpy()), human_bytes(tensor.nbytes))
    run.console.table(table)


def _limited(run: Run, items: list[Any]) -> list[Any]:
    return items if run.verbose else items[:_LISTED]


def _graphs(model: ir.Model) -> Any:
    from graphopt import ir

    return ir.graphs_of(model)


def _known_dims(model: ir.Model, choices: Options) -> list[Sequence[object] | None]:
    """The dims of each output as far as shape facts determine them, in terms of the inputs' dims."""
    from graphopt import api
    from graphopt.ir.signature import Signature

    cx, graph = api.context_for(model, choices), model.graph
    for value in graph.outputs:  # facts about one output refine those about others
        cx.shape(value)
    ports = Signature.of(model).outputs
    return [cx.shape(value) or port.dims for value, port in zip(graph.outputs, ports, strict=True)]


def _producer(model: ir.Model) -> str:
    return " ".join(filter(None, (model.producer_name, model.producer_version)))


def _function_name(function: ir.Function) -> str:
    return f"{function.domain}::{function.name}" + (f":{function.overload}" if function.overload else "")
