"""What a model with variants consists of, in the words that its metadata and a bundle's plan keep."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.profile import Guard

#: The model's metadata entry that tells of its variants. It does not lie in the private namespace
#: ``graphopt.``, which saving strips.
KEY = "graphopt:variants"


@dataclass(frozen=True)
class Branch:
    """A model that is right where its guard holds.

    Attributes:
        name: what its nodes and values are called after.
        guard: what it assumes.
        model: called like the original, though its inputs may declare less.
        pins: inputs that are declared to be of the sizes that the guard checks, by a Reshape: in a branch
            onnxruntime believes nothing else.
    """

    name: str
    guard: Guard
    model: ir.Model
    pins: frozenset[str] = frozenset()


@dataclass(frozen=True)
class VariantRecord:
    """A variant, as it was written.

    Attributes:
        name: such as ``static-1``.
        guard: what it assumes.
        runs: how many runs of the profile it is for.
        nodes: how many it has.
        file: where it lies, in a bundle.
    """

    name: str
    guard: Guard
    runs: int
    nodes: int
    file: str | None = None

    def in_file(self, file: str) -> VariantRecord:
        """The same, which lies in ``file``."""
        return replace(self, file=file)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {"name": self.name, "runs": self.runs, "nodes": self.nodes, "guard": self.guard.to_dict()}
        return found if self.file is None else {**found, "file": self.file}

    @classmethod
    def from_dict(cls, data: Any) -> VariantRecord:
        """Read what :meth:`to_dict` made.

        Raises:
            InvalidModel: it is something else.
        """
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            raise InvalidModel("a variant has no name")
        file, runs, nodes = data.get("file"), data.get("runs", 0), data.get("nodes", 0)
        if not (file is None or isinstance(file, str)) or type(runs) is not int or type(nodes) is not int:
            raise InvalidModel(f"variant {data['name']!r} is not told of in a known way")
        return cls(data["name"], Guard.from_dict(data.get("guard")), runs, nodes, file)


def record_variants(model: ir.Model, variants: list[VariantRecord]) -> None:
    """Note in the metadata of ``model`` which variants it has."""
    model.metadata_props[KEY] = json.dumps([variant.to_dict() for variant in variants], ensure_ascii=False)


def read_variants(model: ir.Model) -> list[VariantRecord]:
    """The variants that the metadata of ``model`` tells of; none if it is not understood."""
    try:
        data = json.loads(model.metadata_props.get(KEY, "[]"))
        return [VariantRecord.from_dict(item) for item in data] if isinstance(data, list) else []
    except (
        ValueError,
        RecursionError,
        InvalidModel,
    ):  # somebody else wrote it: the model means the same without
        return []
