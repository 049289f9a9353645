"""Keep the units of quantized operators: the pairs around operators that onnxruntime runs on integers.

A Transpose must not appear between an operator and the DequantizeLinear or QuantizeLinear beside it, and none
may disappear there if an operator would then become part of a unit (docs/architecture.md, "Quantized
tensors").
"""

from __future__ import annotations

from dataclasses import replace

from graphopt import ir
from graphopt.rewrite.match import Match
from graphopt.rules.building_blocks import quantizers
from graphopt.transforms.layout._dataflow import NAME, Dataflow, Site, Tensor


def keep_quantized_units(flow: Dataflow) -> None:
    """Restrict the sites of ``flow`` such that no unit is broken or completed."""
    fixed: dict[Site, None] = {}
    for tensor in flow.tensors.values():
        writer = tensor.root.producer()
        quantized = _is_computed(writer, "DequantizeLinear")
        readers = [reading.use.place for reading in tensor.readings]
        quantizes = any(_is_computed(reader, "QuantizeLinear") for reader in readers)
        between = quantizers.is_quantizer(writer, "QuantizeLinear") and any(
            _is_computed(reader, "DequantizeLinear") for reader in readers
        )
        if not (quantized or quantizes or between):
            continue
        tensor.is_rigid = True
        if tensor.aliases and _may_complete_unit(tensor, flow):
            fixed |= dict.fromkeys(
                site
                for site in (tensor.writer, *(reading.site for reading in tensor.readings))
                if site is not None
            )
        elif tensor.aliases and not between:
            tensor.is_rigid = False
    _fix(flow, fixed)


def _is_computed(node: object, kind: str) -> bool:
    """Whether ``node`` is a quantizer of this kind of a value that is not constant."""
    if not isinstance(node, ir.Node) or not quantizers.is_quantizer(node, kind):
        return False
    return ir.constant_of(node.inputs[0]) is None


def _may_complete_unit(tensor: Tensor, flow: Dataflow) -> bool:
    """Whether an operator beside a Transpose of ``tensor`` might become part of a unit without it."""
    writer = tensor.root.producer()
    if quantizers.is_quantizer(writer, "QuantizeLinear", "DequantizeLinear"):
        assert writer is not None
        m = Match(NAME, writer, {}, flow.cx)
        return any(quantizers.completes_unit(m, alias) for alias in tensor.aliases) or any(
            flow.cx.dtype(value) == ir.DataType.INT8 for value in (writer.inputs[0], tensor.root)
        )
    return writer is not None and any(
        value is not None and quantizers.is_quantizer(value.producer(), "DequantizeLinear")
        for value in writer.inputs
    )


def _fix(flow: Dataflow, fixed: dict[Site, None]) -> None:
    """Let ``fixed`` sites keep the layouts of the model."""
    if not fixed:
        return
    flow.sites = [site for site in flow.sites if site not in fixed]
    for tensor in flow.tensors.values():
        if tensor.writer in fixed:
            tensor.writer = None
        tensor.readings = [
            replace(reading, site=None) if reading.site in fixed else reading for reading in tensor.readings
        ]
