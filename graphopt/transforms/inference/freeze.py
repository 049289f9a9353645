"""freeze: parameters become constants, and operators that train get their inference form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.errors import unknown
from graphopt.passes.base import Pass
from graphopt.rewrite.replacement_builder import Builder
from graphopt.transforms.inference._inference_forms import NoInferenceForm, inference_form, trains
from graphopt.transforms.scalar.constant_propagation import ConstantPropagation
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Maximum number of names in a remark.
_NAMES = 5


@dataclass(frozen=True)
class Freeze(Pass):
    """Turn the model into its inference form, with constant parameters, and fold constants.

    - Initializers that callers can override become constants, and are no longer inputs.
    - Initializers that training info updates become constants, and training info is removed.
    - Dropout in training mode returns its input, with a mask that keeps all elements; the value of
      ``training_mode`` at run time is ignored. BatchNormalization in training mode uses its running
      statistics, and returns them unchanged. BiasDropout, BitmaskDropout, BitmaskBiasDropout and
      BatchNormInternal of onnxruntime's training builds become standard operators.

    Then the pass folds constants. The frozen model has other results and other inputs than the original, so
    ``optimize`` compares the optimized model with the original in this form. All outputs keep their names.

    Modelled on ``fw_compiler_freezing`` of ``compile_fx.py``.

    Attributes:
        keep: initializers that callers can still override.
    """

    name: ClassVar[str] = "freeze"
    does: ClassVar[str] = "frozen"
    required: ClassVar[bool] = True
    keep: tuple[str, ...] = ()

    def redefine(self, model: ir.Model) -> list[str]:
        """Freeze ``model`` without folding; returns remarks about the changes.

        Raises:
            UsageError: ``keep`` names no initializer that callers can override.
        """
        known = [value.name or "" for value in _overridable(model)]
        for name in self.keep:
            if name not in known:
                raise unknown("overridable initializer", name, known, "graphopt inspect lists the inputs")
        with context_for(model) as cx:
            return [*self._fix_initializers(cx), *self._change_modes(cx)[0]]

    def run(self, model: ir.Model, cx: Context) -> None:
        """Freeze ``model``, unless it is frozen, and fold constants.

        The changes before the folds are no rewrites that bisection could leave out: they define the results.
        """
        changed, left = self._change_modes(cx)
        cx.remarks += [*self._fix_initializers(cx), *changed, *left]
        ConstantPropagation().run(model, cx)

    def _fix_initializers(self, cx: Context) -> Iterator[str]:
        """Make initializers constant; yields remarks."""
        fixed = [value for value in _overridable(cx.model) if value.name not in self.keep]
        for value in fixed:
            cx.edit.fix(value)
        if fixed:
            names = ", ".join(value.name or "" for value in fixed[:_NAMES])
            more = ", …" if len(fixed) > _NAMES else ""
            yield f"frozen: {counted(len(fixed), 'overridable initializer')} became constant ({names}{more})"
        if ir.has_training_info(cx.model):
            ir.drop_training_info(cx.model)
            cx.invalidate("constant")
            yield "frozen: removed training info"

    def _change_modes(self, cx: Context) -> tuple[list[str], list[str]]:
        """Replace nodes that train by their inference form; returns remarks about these and other nodes."""
        changed, left = Counter[str](), list[str]()
        for graph in reversed(list(ir.graphs_of(cx.model))):
            for node in list(graph):
                if node.op_identifier() in cx.model.functions or not trains(node, cx):
                    continue
                try:
                    self._replace(node, cx)
                    changed[node.op_type] += 1
                except NoInferenceForm as reason:
                    left.append(f"not frozen: {node.op_type} {ir.label(node)} still trains: {reason}")
        kinds = ", ".join(f"{count} {op_type}" for op_type, count in sorted(changed.items()))
        return [f"frozen: {kinds} in inference form"] if changed else [], left

    def _replace(self, node: ir.Node, cx: Context) -> None:
        """Replace ``node`` by its inference form.

        Raises:
            NoInferenceForm: it has none.
        """
        op = Builder(cx, node)
        try:
            outputs = inference_form(op, node, cx)
        except NoInferenceForm:
            op.discard()
            raise
        made = op.commit()
        cx.edit.note_origin(made, [node], self.name)
        for old, new in zip(node.outputs, outputs, strict=False):
            if old.name and new is not None:
                cx.edit.replace(old, new)
        cx.edit.remove(node)


def _overridable(model: ir.Model) -> list[ir.Value]:
    """The initializers that callers can override, in the order of the inputs."""
    return [value for value in model.graph.inputs if value.is_initializer() and model.ir_version >= 4]
