"""Losses: weights, ignored labels, reductions, and the log probabilities as another output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_RANDOM = np.random.default_rng(6)
#: Types of scores and labels.
_TYPES = (("float", "int64"), ("double", "int64"), ("float", "int32"), ("double", "int32"))


def cases() -> Iterator[Case]:
    """Both losses on scores of rows, and of positions in rows."""
    shapes: tuple[tuple[int, ...], ...] = ((4, 3), (4, 3, 2), (2, 5, 2, 3))
    for name, shape, reduction, ignored, weighed, (scores, labels) in product(
        ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"),
        shapes,
        ("none", "mean", "sum"),
        (None, 1, -100, -1, 255),
        (False, True),
        _TYPES,
    ):
        if len(shape) == 2 or (scores, labels) == _TYPES[0]:
            yield _case(name, shape, reduction, ignored, weighed, scores, labels)


def _case(
    name: str,
    shape: tuple[int, ...],
    reduction: str,
    ignored: int | None,
    weighed: bool,
    precision: str,
    whole: str,
) -> Case:
    softmax = name.startswith("Softmax")
    log = softmax and reduction == "sum"
    attributes = f'reduction="{reduction}"' + ("" if ignored is None else f", ignore_index={ignored}")
    places = f"[{','.join('NDEF'[: len(shape) - 1])}]"
    dims = f"[{','.join('NCDE'[: len(shape)])}]"
    results = [
        f"{precision}{places if reduction == 'none' else ''} y",
        *([f"{precision}{dims} l"] if log else []),
    ]
    inputs = [f"{precision}{dims} x", f"{whole}{places} t", *([f"{precision}[C] w"] if weighed else [])]
    text = f"""m ({", ".join(inputs)}) => ({", ".join(results)})
        {{ y{", l" if log else ""} = {name}<{attributes}>(x, t{", w" if weighed else ""}) }}"""
    number = np.float32 if precision == "float" else np.float64
    labels = _RANDOM.integers(0, shape[1], (shape[0], *shape[2:])).astype(whole)
    if ignored is not None:
        labels.flat[::3], labels.flat[1] = ignored, 0  # some, not all
    feeds = {"x": _RANDOM.standard_normal(shape).astype(number), "t": labels}
    if weighed:
        feeds["w"] = _RANDOM.uniform(0.5, 2, shape[1]).astype(number)
    label = f"{name} {precision} {whole} {shape} {attributes}{' weights' if weighed else ''}"
    return Case(label, text, feeds, _loss(softmax, reduction, ignored, log))


def _loss(softmax: bool, reduction: str, ignored: int | None, log: bool) -> Any:
    """The loss in torch, differentiable by the weights unlike torch's functions."""
    import torch

    def function(x: Any, labels: Any, weight: Any = None) -> Any:
        scores = x.log_softmax(1) if softmax else x
        counted = labels != (-100 if ignored is None else ignored)
        labels = torch.where(counted, labels, 0).long()
        each = counted * (1 if weight is None else weight[labels])
        y = -each * scores.gather(1, labels.unsqueeze(1)).squeeze(1)
        if reduction != "none":
            y = y.sum() / (each.sum() if reduction == "mean" else 1)
        return (y, scores) if log else y

    return function
