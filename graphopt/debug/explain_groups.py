"""explain: the groups of native kernels in a model, and the reasons for candidates that are in no group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from graphopt import ir
from graphopt.analysis.symbolic import Dim, declared_name, dim_of_atom, symbols
from graphopt.context import Context, Options, context_for
from graphopt.fusion.kernel_policy import AS_FAST_REASON, FEW_NODES_REASON, FREE_REASON, SIZES_REASON
from graphopt.fusion.operator_table import find
from graphopt.fusion.template_policy import RULED_OUT
from graphopt.fusion.template_table import has_template
from graphopt.fusion.unknown_sizes import EQUAL, UNKNOWN
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipeline_steps import Step
from graphopt.passes.pipelines import registry
from graphopt.rewrite.fused_operators import native_in
from graphopt.rewrite.fusion_explanation import Explanation
from graphopt.rewrite.missed_fusions import Missed, describe, graphs_without_kernels
from graphopt.rewrite.partial_match import display_name
from graphopt.rules.building_blocks.dim_options import dim_option

#: The pass that creates groups, and the pipeline that ends with it.
PASS = "fuse-groups"
_PIPELINE = "native"
#: The remedies for a prediction that onnxruntime is as fast: a race, and a group without a race.
_RACE = "graphopt kernels MODEL --candidates races it; optimize --fuser native --tune keeps kernels that win"
_ALL = f"graphopt optimize MODEL -o OUT.onnx --pipeline 'O3,{PASS}{{kernels=all}}' creates its kernel anyway"
#: Names in reasons: quoted values, and the convolution next to a group.
_NAMES = re.compile(r"'[^']*'|(?<=next to )\S+")


def explain_groups(model: ir.Model, options: Options, before: Sequence[Step] = ()) -> Explanation:
    """Run the pipeline ``native`` over ``model``, in place, and explain its groups.

    A candidate is a node that a template or a loop nest may compute.

    Args:
        before: passes that run first.
    """
    with context_for(model, options) as cx:
        Pipeline((*before, *Pipeline.parse(_PIPELINE, registry()).steps)).run(model, cx)
        return Explanation(tuple(native_in(model)), tuple(_missed(model, cx)))


def _missed(model: ir.Model, cx: Context) -> Iterator[Missed]:
    weighed = {names[0]: decision for (owner, names), decision in cx.weighed.items() if owner == PASS}
    for graph in graphs_without_kernels(model):
        for node in graph:
            reason = cx.ungrouped.get(ir.label(node))
            if reason is None or not _is_candidate(node, reason):
                continue
            hint = _hint(node, reason, cx)
            decision = next((weighed[value.name] for value in node.outputs if value.name in weighed), None)
            if decision is not None and decision.ratio is not None and not decision:
                is_raced = not has_template(node) or decision.ratio < RULED_OUT
                reason, hint = decision.reason, _RACE if is_raced else _ALL
            value = node.outputs[0] if node.outputs else None
            yield Missed(
                rule=PASS,
                anchor=display_name(node),
                matched=1,
                nodes=1,
                reason=reason,
                kind=_NAMES.sub("…", reason),
                value=None if value is None else value.name,
                about=None if value is None else describe(value, cx),
                hint=hint,
                origins=tuple(ir.origins(node)),
            )


def _hint(node: ir.Node, reason: str, cx: Context) -> str | None:
    """The remedy for ``reason``; ``None`` if there is none."""
    if reason == AS_FAST_REASON:
        shapes = [cx.shape(value) or () for value in node.inputs if value is not None]
        sizes = _size_options(_declared_dims([dim for shape in shapes for dim in shape]))
        return f"{_RACE}; {sizes} replaces typical sizes" if sizes else _RACE
    if reason.endswith(UNKNOWN):
        text = _NAMES.sub("", reason)
        names = [name for name in _declared_dims(_input_dims(cx)) if _contains_word(text, name)]
        relation = dim_option("--dim-relation", *names) if EQUAL in text and len(names) == 2 else ""
        options = [f"{relation} (if that holds in every run)"] if relation else []
        return ", or ".join([*options, _size_options(names)]) or None
    if reason.startswith(FEW_NODES_REASON):
        return _neighbours_hint(node, cx)
    return None


def _input_dims(cx: Context) -> list[Dim]:
    """The dims of all inputs of the model."""
    return [dim for value in cx.model.graph.inputs for dim in cx.shape(value) or ()]


def _declared_dims(dims: Sequence[Dim]) -> list[str]:
    """The names of the dims of inputs in ``dims``, as ``--dim`` accepts them."""
    atoms = [part for dim in dims for part in symbols(dim).values()]
    return [*dict.fromkeys(filter(None, (declared_name(dim_of_atom(atom)) for atom in atoms)))]


def _contains_word(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _size_options(names: Sequence[str]) -> str:
    """Options that fix dims; empty without names."""
    return " ".join(dim_option("--dim", name, "SIZE") for name in names)


def _neighbours_hint(node: ir.Node, cx: Context) -> str:
    """The neighbours that are missing from a group of ``node``, and the reasons why they are in no group."""
    producers = [value.producer() for value in node.inputs if value is not None]
    readers = [reader for output in node.outputs for reader in ir.readers(output)]
    for other in (*producers, *readers):
        reason = None if other is None else cx.ungrouped.get(ir.label(other))
        if other is not None and reason is not None and _is_candidate(other, reason):
            return f"none for this node alone; it could join {display_name(other)}, but {reason}"
    return "none: a kernel of one node saves no pass over memory"


def _is_candidate(node: ir.Node, reason: str) -> bool:
    """Whether a kernel may compute ``node``: an operator or a template exists, and its work is not free."""
    return reason not in (FREE_REASON, SIZES_REASON) and (has_template(node) or find(node) is not None)
