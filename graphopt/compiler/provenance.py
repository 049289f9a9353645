"""The origin of a result, for the manifests of bundles: the original's file, the device and the options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.cost.select_table import SHIPPED
from graphopt.model_arguments import ModelLike
from graphopt.optimize_options import OPTIONS
from graphopt.settings import Settings, cache_role
from graphopt.specialization.provenance import OriginalFile, Provenance
from graphopt.util.disk_store import file_digest

#: Options that affect reports and comparisons, but not results.
_IDLE = ("weigh_each", "inputs")


def provenance_of(env: Environment, model: ModelLike, original: ir.Model) -> Provenance:
    """The origin of results for ``model``, which ``original`` is loaded from."""
    file = None
    if not isinstance(model, (ir.Model, onnx.ModelProto, bytes)):
        path = Path(model)
        producer = " ".join(filter(None, (original.producer_name, original.producer_version)))
        file = OriginalFile(path.name, file_digest(path), producer)
    return Provenance(env.target, file, recorded_settings(env))


def recorded_settings(env: Environment) -> dict[str, Any]:
    """The settings and options that differ from their defaults and can change results, as JSON.

    Objects, such as a caller's passes, are replaced by the names of their types. Folders of external data are
    left out, and so is the choice of the shipped costs, which is the default on machines without calibration.
    """
    found: dict[str, Any] = {}
    for item in dataclasses.fields(Settings):
        value = getattr(env.settings, item.name)
        if value != item.default and cache_role(item.name) == "key" and item.name != "allow_external":
            found[item.name] = _plain(value)
    if "costs" in found:  # shipped tables have a name, others a path, which differs between machines
        found["costs"] = Path(found["costs"]).name
    if found.get("costs") == SHIPPED:
        del found["costs"]
    for name, value in env.given.items():
        if name in OPTIONS and _is_recorded(name) and value not in (None, (), {}, False):
            found[name] = _plain(value)
    return dict(sorted(found.items()))


def _is_recorded(name: str) -> bool:
    """Whether the option ``name`` can change results, and is not a setting."""
    option = OPTIONS[name]
    return name == "tune" or (option.setting is None and option.cache == "key" and name not in _IDLE)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("graphopt.tuning."):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return type(value).__name__
