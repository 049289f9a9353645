"""Loss functions to add to a model: ``cross_entropy:logits,labels`` and ``mse:prediction,target``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.context import Context
from graphopt.errors import UnsupportedModel, UsageError, unknown
from graphopt.util.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Loss:
    """A loss function of two values, such as ``cross_entropy:logits,labels`` or ``mse:prediction,target``.

    Attributes:
        function: ``cross_entropy``, the mean over all positions of -log softmax(prediction)[target], with
            int32 or int64 labels [d0, …] without the class axis; or ``mse``, the mean of
            (prediction - target)².
        prediction: the name of a value.
        target: the name of a value, or of an input to add if the model has no such value.
        axis: the class axis of cross_entropy, required for more than two axes.
        ignore_index: a label that cross_entropy excludes from the mean.
    """

    function: str
    prediction: str
    target: str
    axis: int | None = None
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        if self.function not in _LOSSES:
            raise unknown("loss function", self.function, _LOSSES)

    @classmethod
    def parse(cls, text: str) -> Loss:
        """Parse text such as ``cross_entropy:logits,labels,axis=-1``.

        Raises:
            UsageError: the text does not describe a loss function.
        """
        function, _, rest = text.partition(":")
        if function not in _LOSSES:
            raise unknown("loss function", function, _LOSSES)
        example = _EXAMPLES[function]
        names = rest.split(",")
        settings: dict[str, int] = {}
        while len(names) > 2 and "=" in names[-1]:
            key, _, number = names.pop().partition("=")
            known = _SETTINGS[function]
            if key not in known:
                raise unknown(f"setting of {function}", key, known, f"such as {example}")
            if not number.removeprefix("-").isdecimal():
                raise UsageError(f"{key} must be an integer, not {number!r}", hint=f"such as {example}")
            settings[key] = int(number)
        if len(names) != 2 or not all(names):
            raise UsageError(
                f"{text!r} does not name two values, a prediction and a target", hint=f"such as {example}"
            )
        return cls(function, names[0], names[1], **settings)

    def __str__(self) -> str:
        own = {"axis": self.axis, "ignore_index": self.ignore_index}
        settings = "".join(f",{key}={number}" for key, number in own.items() if number is not None)
        return f"{self.function}:{self.prediction},{self.target}{settings}"

    def write(self, op: GraphBuilder, values: dict[str, ir.Value]) -> ir.Value:
        """Append the loss to the graph of ``op``; returns it, a scalar.

        Args:
            values: the values of the graph by name.

        Raises:
            UsageError: the prediction is not a value of the graph, or the two values are incompatible.
            UnsupportedModel: the type or rank of the prediction is unknown.
        """
        if self.prediction not in values:
            where = "the prediction comes first, then the target; graphopt dump shows all values"
            raise unknown("value", self.prediction, values, where)
        prediction = values[self.prediction]
        target = values.get(self.target)
        return _LOSSES[self.function](op, self, prediction, target)


def parse_loss(loss: T, model: ir.Model) -> T | Loss:
    """``loss``, parsed if it is text that describes a loss function and names no value of ``model``."""
    if not isinstance(loss, str) or ":" not in loss or loss.partition(":")[0] not in _LOSSES:
        return loss
    own = [*model.graph.inputs, *(output for node in model.graph for output in node.outputs)]
    return loss if any(value.name == loss for value in own) else Loss.parse(loss)


def _mse(op: GraphBuilder, loss: Loss, a: ir.Value, b: ir.Value | None) -> ir.Value:
    if b is None:
        b = op.cx.edit.add_input(loss.target, op.dtype(a), declared_dims(op.cx, a))
    one, other = op.cx.shape(a), op.cx.shape(b)
    if one is not None and other is not None:
        pairs = zip(one, other, strict=False)
        if len(one) != len(other) or any(
            isinstance(d, int) and isinstance(e, int) and d != e for d, e in pairs
        ):
            dims = ["x".join(map(str, shape)) or "1" for shape in (one, other)]
            raise UsageError(f"mse needs equal shapes: {a.name!r} is {dims[0]} and {b.name!r} is {dims[1]}")
    difference = op.Sub(a, b)
    return op.ReduceMean(op.Mul(difference, difference), keepdims=0)


def _cross_entropy(op: GraphBuilder, loss: Loss, logits: ir.Value, labels: ir.Value | None) -> ir.Value:
    shape = op.cx.shape(logits)
    if shape is None:
        raise UnsupportedModel(f"cross_entropy needs the rank of {logits.name!r}, which is unknown")
    axis = _axis_of_classes(loss, len(shape))
    if labels is None:
        dims = declared_dims(op.cx, logits)
        dims = None if dims is None else [dim for position, dim in enumerate(dims) if position != axis]
        labels = op.cx.edit.add_input(loss.target, ir.DataType.INT64, dims)
    dtype = op.cx.dtype(labels) or labels.dtype
    if dtype is not None and dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        raise UsageError(
            f"{loss.target!r} is {dtype.name.lower()}, and labels must be int32 or int64",
            hint="the prediction comes first, then the labels: cross_entropy:logits,labels",
        )
    if axis == len(shape) - 1 and len(shape) != 2:  # flattening all other axes requires no copy
        logits, labels = op.Flatten(logits, axis=axis), op.Reshape(labels, [-1])
    elif axis != 1:
        others = [position for position in range(len(shape)) if position != axis]
        logits = op.Transpose(logits, perm=[others[0], axis, *others[1:]])
    return op.SoftmaxCrossEntropyLoss(logits, labels, reduction="mean", ignore_index=loss.ignore_index)


def _axis_of_classes(loss: Loss, rank: int) -> int:
    axis = loss.axis
    if axis is None:
        if rank > 2:
            raise UsageError(
                f"{loss.prediction!r} has {rank} axes, and the class axis is not given",
                hint=f"{loss},axis=-1 for the last, as in language models, axis=1 for channels of images",
            )
        axis = rank - 1
    if not -rank <= axis < rank:
        raise UsageError(f"{loss.prediction!r} has {rank} axes: class axis {axis} is out of range")
    return axis % rank


def declared_dims(cx: Context, value: ir.Value) -> list[int | str | None] | None:
    """The dims of ``value`` for a declaration: ints, symbols of the model's inputs, and ``None``."""
    if value.producer() is None and value.shape is not None:
        return [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    shape = cx.shape(value)
    if shape is None:
        return None
    own = dynamic_dims(cx.model)
    return [dim if isinstance(dim, int) else str(dim) if str(dim) in own else None for dim in shape]


def dynamic_dims(model: ir.Model) -> dict[str, None]:
    """The names of the dynamic dims of inputs."""
    return dict.fromkeys(
        str(dim.value)
        for value in model.graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None
    )


_LOSSES: dict[str, Callable[[GraphBuilder, Loss, ir.Value, ir.Value | None], ir.Value]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
}
_EXAMPLES = {"cross_entropy": "cross_entropy:logits,labels,axis=-1", "mse": "mse:prediction,target"}
_SETTINGS: dict[str, tuple[str, ...]] = {"cross_entropy": ("axis", "ignore_index"), "mse": ()}
