"""explain: the groups of native kernels in a model, and the reasons for candidates that are in no group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from graphopt import ir
from graphopt.context import Context, Options, context_for
from graphopt.fusion.kernel_policy import AS_FAST_REASON, FREE_REASON, SIZES_REASON
from graphopt.fusion.operator_table import find
from graphopt.fusion.template_policy import RULED_OUT
from graphopt.fusion.template_table import has_template
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipeline_steps import Step
from graphopt.passes.pipelines import registry
from graphopt.rewrite.fused_operators import native_in
from graphopt.rewrite.fusion_explanation import Explanation
from graphopt.rewrite.missed_fusions import Missed, describe, graphs_without_kernels
from graphopt.rewrite.partial_match import display_name

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
            hint = _RACE if reason == AS_FAST_REASON else None
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


def _is_candidate(node: ir.Node, reason: str) -> bool:
    """Whether a kernel may compute ``node``: an operator or a template exists, and its work is not free."""
    return reason not in (FREE_REASON, SIZES_REASON) and (has_template(node) or find(node) is not None)
