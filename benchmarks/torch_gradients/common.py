"""A model in ONNX, the same function in torch, and whether the gradients are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.parser

from benchmarks.split_step import difference
from graphopt import ir
from graphopt.autodiff.differentiate_by_group import ByGroup
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.split_joint import split
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ort import session

#: How far a gradient may be off, relative to the largest number in it, by element type.
TOLERANCES = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 1e-4, np.dtype(np.float16): 2e-2}


@dataclass(frozen=True)
class Case:
    """A function, in ONNX and in torch.

    Attributes:
        label: the varied attributes, such as ``Conv 2d groups=2 pads=1,2``.
        text: the model as ONNX text, without a header.
        feeds: its inputs in their order. Those of floating-point numbers are differentiated by.
        torch: takes the inputs as tensors, in their order and in double precision, and returns the model's
            outputs of floating-point numbers, one or a tuple.
        opset: of the standard's operators.
        domains: further opset imports, such as ``, "com.microsoft" : 1``.
        frozen: inputs of floating-point numbers that are not differentiated by.
    """

    label: str
    text: str
    feeds: Mapping[str, np.ndarray]
    torch: Callable[..., Any]
    opset: int = 20
    domains: str = ""
    frozen: tuple[str, ...] = ()

    def model(self) -> ir.Model:
        """The model."""
        header = f'<ir_version: 10, opset_import: ["" : {self.opset}{self.domains}]> '
        return ir.from_proto(onnx.parser.parse_model(header + self.text))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: ``right``, ``refused``, ``wrong``, or ``broken`` if it does not load or run."""

    label: str
    verdict: str
    reason: str = ""


def judge(case: Case, by_group: bool = False) -> Outcome:
    """Compare all gradients of a case, with onnxruntime's optimizations off and on.

    Args:
        by_group: differentiate groups of one node or more.
    """
    wrt = [name for name, value in case.feeds.items() if _is_real(value) and name not in case.frozen]
    outputs, cotangents, truths = _by_torch(case, wrt)
    try:
        model = case.model()
    except GraphoptError as error:
        return Outcome(case.label, "broken", error.message)
    real = [item.name or "" for item in model.graph.outputs]
    real = [name for name, given in zip(real, cotangents, strict=True) if given is not None]
    try:
        joint = differentiate(model, real, wrt, by=ByGroup(minimum=1) if by_group else None)
    except GraphoptError as error:
        return Outcome(case.label, "refused", error.message)
    types = {item.name: item.dtype.numpy() for item in joint.model.graph.inputs if item.dtype is not None}
    given = {
        joint.cotangents[name]: value for name, value in zip(real, filter(_given, cotangents), strict=True)
    }
    feeds = {**case.feeds, **{name: np.asarray(value, types[name]) for name, value in given.items()}}
    for optimizations in ("off", "default"):
        try:
            running = session.create(ir.to_bytes(joint.model), optimizations=optimizations, threads=1)
            found = session.run(running, feeds, [*real, *joint.gradients.values()])
        except RuntimeFailure as error:
            return Outcome(case.label, "broken", error.message)
        expected = [*filter(_given, outputs), *truths]
        for name, value, truth in zip([*real, *joint.gradients], found, expected, strict=True):
            if value.shape != truth.shape:
                return Outcome(case.label, "wrong", f"{name}: shape {value.shape} for {truth.shape}")
            scale = max(1.0, float(np.abs(truth).max(initial=0)))
            off = float(np.abs(value.astype(np.float64) - truth).max(initial=0)) / scale
            if not off <= TOLERANCES[value.dtype]:
                return Outcome(case.label, "wrong", f"{name}: off by {off:.1e} ({optimizations})")
    return Outcome(case.label, "right")


def judge_split(case: Case, budget: float) -> Outcome:
    """Compare forward and backward models with the joint graph."""
    wrt = [name for name, value in case.feeds.items() if _is_real(value) and name not in case.frozen]
    _, cotangents, _ = _by_torch(case, wrt)
    model = case.model()
    given = {
        item.name or "": value
        for item, value in zip(model.graph.outputs, cotangents, strict=True)
        if _given(value)
    }
    try:
        found = split(model, list(given), wrt, memory_budget=budget)
    except GraphoptError as error:
        return Outcome(case.label, "refused", error.message)
    types = {
        item.name: item.dtype.numpy() for item in found.joint.model.graph.inputs if item.dtype is not None
    }
    takers = found.joint.cotangents
    fed = {takers[name]: np.asarray(value, types[takers[name]]) for name, value in given.items()}
    return Outcome(case.label, *difference(found, {**case.feeds, **fed}))


def _is_real(value: np.ndarray) -> bool:
    return value.dtype in TOLERANCES


def _given(value: Any) -> bool:
    return value is not None


def _by_torch(case: Case, wrt: list[str]) -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """The outputs, their cotangents (``None`` for integers), and the gradients of ``wrt``."""
    import torch

    random = np.random.default_rng(0)
    tensors = {
        name: torch.tensor(value.astype(np.float64) if _is_real(value) else value, requires_grad=name in wrt)
        for name, value in case.feeds.items()
    }
    results = case.torch(*tensors.values())
    results = results if isinstance(results, (tuple, list)) else (results,)
    outputs: list[Any] = []
    cotangents: list[Any] = []
    total = torch.zeros((), dtype=torch.float64)
    for result in results:
        if not result.is_floating_point():
            outputs.append(None)
            cotangents.append(None)
            continue
        given = random.standard_normal(tuple(result.shape))
        total = total + (result * torch.tensor(given)).sum()
        outputs.append(result.detach().numpy())
        cotangents.append(given)
    leaves = [tensors[name] for name in wrt]
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    truths = [
        (torch.zeros_like(leaf) if dx is None else dx).detach().numpy()
        for leaf, dx in zip(leaves, found, strict=True)
    ]
    return outputs, cotangents, truths
