"""graphopt inspect: the contents of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import Block, Line, Table, counted, human_bytes, human_count

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
graphopt inspect model.gopt -v
"""

#: Number of operators, functions and weights listed without -v.
_LISTED = 15


@command_decorator.command("inspect", example=EXAMPLE)
@shared_options.model_argument()
@shared_options.model_options
@shared_options.dim_options
def command(run: Run, model: Path) -> Output:
    """Show the interface and the contents of a model.

    Lists inputs, outputs, versions, operators, weights and functions; -v lists all of them, with the largest
    weights and the estimated FLOPs. For a profile of graphopt profile, shows the recorded values. For
    variants, in a model or a bundle, shows their assumptions, nodes and weights, and with -v the memory of
    their sessions.
    """
    from graphopt import api
    from graphopt.cli.views import variants as views
    from graphopt.cli.views.settings import readable_record
    from graphopt.instrument.model_summary import Interface, Summary, external_bytes
    from graphopt.profile import Profile
    from graphopt.recorded_settings import KEY
    from graphopt.specialization.bundle.loaded_bundle import Bundle

    if Profile.is_at(model):
        return _profile_output(run, Profile.read(model))
    if api.is_bundle(model):
        resolve_options.check_idle(["Inputs"], "has no effect on a bundle", "leave it out")
        return views.output(run, Bundle(model, check_target=False))
    loaded = api.load_model(model)
    choices = run.compiler.vouched(loaded)
    summary, interface = Summary.of(loaded), Interface.of(loaded)
    external = external_bytes(loaded)
    record = readable_record(interface.metadata.get(KEY))
    flops, unknown = _flops(loaded, choices) if run.verbose else (None, 0)
    variants, session = views.branches(run, model, loaded)
    data = {
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
        "settings": None if record is None else record.to_dict(),
    }

    def text() -> Iterator[Block]:
        yield Line(data["path"], "title")
        yield _facts(model, loaded, summary, interface, external)
        yield ""
        yield from _ports(interface, _known_dims(loaded, choices), run.verbose)
        yield ""
        yield from _contents(loaded, summary, run.verbose)
        yield from views.variant_blocks(variants, run.verbose)
        if session is not None:
            yield f"\n  memory of a session: {human_bytes(session)}"
        if flops is not None:
            but = f" (without {counted(unknown, 'node')} of unknown shape)" if unknown else ""
            yield f"\n  estimated FLOPs{but}: {flops}"

    return Output(data, text())


def _profile_output(run: Run, profile: Profile) -> Output:
    from graphopt.cli.views.profiles import profile_blocks

    resolve_options.check_idle(["Inputs"], "has no effect on a profile", "leave it out")
    inputs = dict.fromkeys(name for pattern in profile.patterns for name in pattern.inputs)
    return Output(profile.to_dict(), profile_blocks(profile, [*inputs], run.verbose))


def _facts(
    path: Path, model: ir.Model, summary: Summary, interface: Interface, external: dict[str, int]
) -> Table:
    from graphopt.cli.views.settings import readable_record, summary_of
    from graphopt.recorded_settings import KEY

    opsets = ", ".join(f"{domain} {version}" for domain, version in interface.opsets.items())
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
        if key == KEY and (record := readable_record(value)) is not None:
            facts.add("settings", summary_of(record))
            continue
        facts.add(f"metadata {key}", value if len(value) <= 60 else f"{value[:57]}...")
    return facts


def _ports(interface: Interface, outputs: list[Sequence[object] | None], verbose: int) -> Iterator[Block]:
    """The inputs, and the outputs with the dims ``outputs``."""
    from graphopt.ir.signature import notation

    listed = [port for port in interface.signature.inputs if port.role != "constant" or verbose]
    ports = Table(["", "name", "type", ""], "<<<<")
    for port in listed:
        text = notation(port.type, None if port.dims is None else port.named_dims)
        ports.add("input", port.name, text, "" if port.role == "required" else port.role)
    for port, dims in zip(interface.signature.outputs, outputs, strict=True):
        ports.add("output", port.name, notation(port.type, dims))
    yield ports
    if hidden := len(interface.signature.inputs) - len(listed):
        count = counted(hidden, "initializer is", "initializers are")
        yield f"  {count} listed as inputs too, as IR versions below 4 require (-v lists them)"


def _contents(model: ir.Model, summary: Summary, verbose: int) -> Iterator[Block]:
    """The operators and functions, and the largest weights if ``verbose``."""
    from graphopt import ir

    limit = None if verbose else _LISTED
    ops = list(summary.ops.items())
    operators = Table(["operator", "count"], "<>")
    for name, count in ops[:limit]:
        operators.add(name, f"{count:,}")
    yield operators
    if limit is not None and len(ops) > limit:
        yield f"  and {counted(len(ops) - limit, 'operator')} more (-v lists all)"
    if model.functions:
        calls = Counter(node.op_identifier() for graph in ir.graphs_of(model) for node in graph)
        functions = Table(["function", "nodes", "calls"], "<>>")
        for key, function in list(model.functions.items())[:limit]:
            functions.add(_function_name(function), len(function), calls[key])
        yield ""
        yield functions
    if verbose:
        yield ""
        yield _weights(model)


def _flops(model: ir.Model, choices: Options) -> tuple[str, int]:
    """FLOPs of one run in terms of the dynamic dims, and the number of nodes that are not counted."""
    from graphopt import api
    from graphopt.analysis.cost import Cost

    cost = Cost.of(model.graph, api.context_for(model, choices).facts)
    return str(cost.flops), len(cost.unknown)


def _weights(model: ir.Model) -> Table:
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
    return table


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
