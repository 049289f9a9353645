"""convert-opset: convert a model to another version of the standard's operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UnsupportedModel, UsageError
from graphopt.opset import convert
from graphopt.passes.base import CHOSEN_OPSET, Pass
from graphopt.transforms.opset._lost_kernels import lost_kernels
from graphopt.transforms.opset._node_conversion import NodeConversion, conversion_of
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ConvertOpset(Pass):
    """Write the model for opset ``target`` of ai.onnx, such as ``convert-opset{target=21}``.

    Nodes of bodies and functions are converted in place. Most nodes need no change; onnx's version converter
    converts the others one by one. The IR version is raised if the opset requires a newer one. Other domains
    are not changed.

    Attributes:
        target: the opset version.

    Raises:
        UnsupportedModel: a node can't be converted; the model is then unchanged.
        UsageError: the opset version does not exist.
    """

    name: ClassVar[str] = "convert-opset"
    does: ClassVar[str] = "converted"
    provides: ClassVar[frozenset[str]] = frozenset({CHOSEN_OPSET})
    required: ClassVar[bool] = True
    target: int = 0

    def __post_init__(self) -> None:
        if self.target == 0:
            raise UsageError("convert-opset needs a target", hint="such as convert-opset{target=21}")
        if not 1 <= self.target <= convert.NEWEST:
            raise UsageError(
                f"there is no opset {self.target}", hint=f"the installed onnx knows 1 to {convert.NEWEST}"
            )

    def run(self, model: ir.Model, cx: Context) -> None:
        """Convert all nodes, or raise before any change."""
        if ir.has_training_info(model):
            raise UnsupportedModel("the model has training info, whose graphs can't be converted")
        conversions = [
            conversion
            for graph in ir.graphs_of(model)
            for node in graph
            for conversion in self._conversions(node, cx)
        ]
        known = model.graph.opset_imports
        source = ir.standard_version(known, self.target)
        imports = [model.graph.opset_imports, *(held.opset_imports for held in model.functions.values())]
        for found in imports:
            cx.edit.set_import(found, "", self.target)
        imported = [onnx.helper.make_opsetid("", self.target)]
        needed = onnx.helper.find_min_ir_version_for(imported, ignore_unknown=True)
        if needed > model.ir_version:
            cx.edit.raise_ir_version(needed)
        for conversion in conversions:
            conversion.apply(cx, self.name)
        if source != self.target:
            cx.remarks.append(f"opset {source} → {self.target}")
            lost = lost_kernels(model, source, cx)
            if lost:
                runtime = f"onnxruntime {cx.target.version}"
                cx.remarks.append(f"{runtime} has no kernel for {', '.join(lost)} of opset {self.target}")

    def _conversions(self, node: ir.Node, cx: Context) -> Iterator[NodeConversion]:
        if node.domain != "" or node.op_identifier() in cx.model.functions:
            return
        source = cx.version(node)
        if not convert.changes(node.op_type, source, self.target):
            return
        if node.op_type == "Constant" and self.target >= source:
            return
        try:
            conversion = conversion_of(node, source, self.target, cx)
        except UnsupportedModel as error:
            function = cx.edit.scopes.function(node.graph) if node.graph is not None else None
            where = "" if function is None else f" in function {function.domain}::{function.name}"
            raise UnsupportedModel(
                f"the model can't be written for opset {self.target}: {error.message}"
                f" (node {ir.label(node)}{where})",
                hint="choose another --target-opset",
            ) from error
        if conversion is not None:
            yield conversion
