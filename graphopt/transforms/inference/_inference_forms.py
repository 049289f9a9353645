"""The inference forms of operators that train: Dropout, BatchNormalization, and their fused variants.

In training mode, Dropout draws random numbers, and BatchNormalization computes the statistics of its batch.
In inference mode, Dropout returns its input, and BatchNormalization uses running statistics, which it leaves
unchanged. Sources: the ONNX operator specifications of Dropout-1 to 22 and BatchNormalization-1 to 15, and
onnxruntime's ``contrib_defs.cc`` and ``training_op_defs.cc`` for com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.rewrite.replacement_builder import Builder

#: The domain of the gradient operators and optimizers of the ONNX standard.
_TRAINING_DOMAIN = "ai.onnx.preview.training"
#: The outputs that replace those of a node, ``None`` for one that is unread.
Outputs = Sequence[ir.Value | None]


class NoInferenceForm(Exception):
    """A node that trains has no inference form; the text is the reason."""


def trains(node: ir.Node, cx: Context) -> bool:
    """Whether ``node`` may compute another result in training mode, or exists only for training."""
    if node.domain in ("", ir.MICROSOFT):
        is_training = _CONDITIONS.get((node.domain, node.op_type))
        return is_training is not None and is_training(node, cx)
    return node.domain == _TRAINING_DOMAIN


def inference_form(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """Build the inference form of ``node``, which trains, by ``op``; returns the new outputs.

    Raises:
        NoInferenceForm: an output that only training defines is read, or the operator computes a gradient.
    """
    form = _FORMS.get((node.domain, node.op_type))
    if form is None:
        raise NoInferenceForm("it exists only for training")
    return form(op, node, cx)


# Conditions ---------------------------------------------------------------------------------------


def _is_old_training(node: ir.Node, cx: Context) -> bool:
    """Whether ``is_test``, an attribute before opset 7, selects training mode, which is its default."""
    test = node.attributes.get("is_test")
    return cx.version(node) < 7 and (test is None or test.is_ref() or test.value == 0)


def _dropout_trains(node: ir.Node, cx: Context) -> bool:
    return _is_old_training(node, cx) if cx.version(node) < 7 else traits.is_random(node)


def _batchnorm_trains(node: ir.Node, cx: Context) -> bool:
    return _is_old_training(node, cx) if cx.version(node) < 7 else traits.batchnorm_trains(node)


def _has_training_mode(node: ir.Node, cx: Context) -> bool:
    """Whether the attribute ``training_mode``, which is 0 by default, may be set."""
    mode = node.attributes.get("training_mode")
    return mode is not None and (mode.is_ref() or mode.value != 0)


def _always(node: ir.Node, cx: Context) -> bool:
    """Operators of onnxruntime's training builds."""
    return True


# Forms --------------------------------------------------------------------------------------------


def _required(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise NoInferenceForm(f"input {index} is missing")
    return value


def _refuse_read(node: ir.Node, first: int, about: str) -> None:
    """Refuse if an output from ``first`` on is read."""
    for output in node.outputs[first:]:
        if output.name and ir.is_read(output):
            raise NoInferenceForm(f"{about} {output.name!r} is read, which has no value in inference mode")


def _dropout(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """Dropout(x, …) → x, and a mask that keeps all elements."""
    x = _required(node, 0)
    return _with_mask(op, node, cx, x, x)


def _bias_dropout(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """BiasDropout(x, bias, residual, …) → x + bias + residual, and a mask that keeps all elements."""
    x = _required(node, 0)
    return _with_mask(op, node, cx, x, _sum_of_bias_and_residual(op, node, x))


def _sum_of_bias_and_residual(op: Builder, node: ir.Node, x: ir.Value) -> ir.Value:
    total: ir.Value = op.node("Add", [x, _required(node, 1)])
    residual = node.inputs[2] if len(node.inputs) > 2 else None
    return total if residual is None else op.node("Add", [total, residual])


def _with_mask(op: Builder, node: ir.Node, cx: Context, x: ir.Value, result: ir.Value) -> Outputs:
    """``result``, and a boolean mask of the shape of ``x``, if it is read."""
    if len(node.outputs) < 2 or not node.outputs[1].name or not ir.is_read(node.outputs[1]):
        return [result, None]
    if cx.version(node) < 9:
        raise NoInferenceForm("its mask is read, and the opset has no ConstantOfShape")
    shape = op.node("Shape", [x])
    return [result, op.node("ConstantOfShape", [shape], {"value": ir.tensor(np.array([True]))})]


def _bitmask_dropout(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """BitmaskDropout(x, …) → x; the packed mask must be unread."""
    _refuse_read(node, 1, "the packed mask")
    return [_required(node, 0), None]


def _bitmask_bias_dropout(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """BitmaskBiasDropout(x, bias, residual, …) → x + bias + residual; the packed mask must be unread."""
    _refuse_read(node, 1, "the packed mask")
    return [_sum_of_bias_and_residual(op, node, _required(node, 0)), None]


def _batchnorm(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """BatchNormalization with running statistics, which it returns unchanged."""
    _refuse_read(node, 3, "the saved statistic")
    inputs = [_required(node, index) for index in range(5)]
    modes = {"training_mode": None} if cx.version(node) >= 7 else {"is_test": 1}
    attributes = {**node.attributes, **modes}
    return [op.node("BatchNormalization", inputs, attributes), *inputs[3:]]


def _internal_batchnorm(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """BatchNormInternal → BatchNormalization with running statistics."""
    _refuse_read(node, 3, "the saved statistic")
    inputs = [_required(node, index) for index in range(5)]
    attributes = {name: given for name, given in node.attributes.items() if name in ("epsilon", "momentum")}
    return [op.node("BatchNormalization", inputs, attributes), *inputs[3:]]


def _without_training_mode(op: Builder, node: ir.Node, cx: Context) -> Outputs:
    """The same operator without ``training_mode``, which affects only the storage of its weights."""
    made = op.like(node, node.inputs, training_mode=None)
    return [made] if isinstance(made, ir.Value) else made


_VENDOR = ir.MICROSOFT

_CONDITIONS: dict[tuple[str, str], Callable[[ir.Node, Context], bool]] = {
    ("", "Dropout"): _dropout_trains,
    ("", "BatchNormalization"): _batchnorm_trains,
    (_VENDOR, "BiasDropout"): _always,
    (_VENDOR, "BitmaskDropout"): _always,
    (_VENDOR, "BitmaskBiasDropout"): _always,
    (_VENDOR, "BatchNormInternal"): _always,
    (_VENDOR, "MatMulBnb4"): _has_training_mode,
    (_VENDOR, "SoftmaxDropout"): _always,
    (_VENDOR, "BiasSoftmaxDropout"): _always,
    (_VENDOR, "DropoutGrad"): _always,
    (_VENDOR, "BatchNormalizationGrad"): _always,
}

_FORMS: dict[tuple[str, str], Callable[[Builder, ir.Node, Context], Outputs]] = {
    ("", "Dropout"): _dropout,
    ("", "BatchNormalization"): _batchnorm,
    (_VENDOR, "BiasDropout"): _bias_dropout,
    (_VENDOR, "BitmaskDropout"): _bitmask_dropout,
    (_VENDOR, "BitmaskBiasDropout"): _bitmask_bias_dropout,
    (_VENDOR, "BatchNormInternal"): _internal_batchnorm,
    (_VENDOR, "MatMulBnb4"): _without_training_mode,
}
