"""Preserve meaningless details of serialization, so that an unmodified model round-trips byte for byte.

onnx-ir sorts entries, drops fields that are set but empty, and keeps one declaration per value.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import onnx

from graphopt.ir.constants import NAMESPACE

_ORDER = NAMESPACE + "value_info_order"
_OUTPUTS = NAMESPACE + "outputs"
_FIELDS = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


def header_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The fields of ``proto`` other than its graph and functions."""
    header = onnx.ModelProto()
    for name in _FIELDS:
        if proto.HasField(name):
            setattr(header, name, getattr(proto, name))
    header.opset_import.extend(proto.opset_import)
    header.metadata_props.extend(proto.metadata_props)
    return header


def restore_header(proto: onnx.ModelProto, header: onnx.ModelProto | None) -> None:
    """Restore the order of entries and empty fields of the file, for unchanged contents."""
    if header is None:
        return
    for name in _FIELDS:
        if header.HasField(name) and getattr(proto, name) == getattr(header, name):
            setattr(proto, name, getattr(header, name))
    _restore_entries(proto.opset_import, header.opset_import, lambda item: (item.domain, item.version))
    _restore_entries(proto.metadata_props, header.metadata_props, lambda item: (item.key, item.value))


def _restore_entries(entries: Any, before: Any, key: Callable[[Any], object]) -> None:
    """Move the ``entries`` that existed ``before`` to the front, in their old order and form."""
    now = {key(item): item for item in entries}
    kept = {key(item): item for item in before if key(item) in now}
    ordered = [*kept.values(), *(item for name, item in now.items() if name not in kept)]
    del entries[:]
    entries.extend(ordered)


def note_order(holder: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Record the order of ``value_info``."""
    if holder.value_info:
        holder.metadata_props.add(key=_ORDER, value="\n".join(info.name for info in holder.value_info))


def noted_order(holder: onnx.GraphProto | onnx.FunctionProto) -> dict[str, int]:
    """The names in the file's ``value_info``, with their positions."""
    before = entry(holder.metadata_props, _ORDER)
    return {} if before is None else {name: index for index, name in enumerate(before.split("\n"))}


def restore_order(holder: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Restore the file's order of ``value_info``; new entries are last."""
    place = noted_order(holder)
    if not place or not holder.value_info:
        return
    infos = list(holder.value_info)
    ordered = sorted(infos, key=lambda info: place.get(info.name, len(place)))
    if ordered != infos:
        del holder.value_info[:]
        holder.value_info.extend(ordered)


def entry(entries: Iterable[onnx.StringStringEntryProto], key: str) -> str | None:
    """The value of metadata property ``key``."""
    return next((entry.value for entry in entries if entry.key == key), None)


def note_outputs(graph: onnx.GraphProto) -> None:
    """Record declarations of outputs that differ from the declaration of their value.

    A graph input has the declaration of the input; another value has that of the last output that refers to
    it. Runtimes rely on declarations of inputs, and accept less precise outputs.
    """
    inputs = {info.name: info for info in graph.input}
    declared = {**{info.name: info for info in graph.output}, **inputs}
    lines = []
    for index, info in enumerate(graph.output):
        held = declared[info.name]
        if info != held:
            packed = [base64.b64encode(item.SerializeToString()).decode() for item in (held, info)]
            lines.append(" ".join((str(index), *packed)))
            if info.name in inputs:  # onnx-ir reads outputs last and trusts them
                info.CopyFrom(held)
    if lines:
        graph.metadata_props.add(key=_OUTPUTS, value="\n".join(lines))


def restore_outputs(graph: onnx.GraphProto) -> None:
    """Restore the file's declarations of unchanged outputs."""
    for line in (entry(graph.metadata_props, _OUTPUTS) or "").splitlines():
        index, held, own = line.split(" ")
        before, info = (onnx.ValueInfoProto.FromString(base64.b64decode(packed)) for packed in (held, own))
        found = graph.output[int(index)] if int(index) < len(graph.output) else None
        if found is not None and found.name == before.name and found.type == before.type:
            found.CopyFrom(info)
