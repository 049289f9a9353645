"""The records of the variants of a model, in its metadata and in the plans of bundles."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.profile import Guard
from graphopt.util.lazy_dataclass import dataclass

#: Metadata key of the records of a model's variants, outside of the namespace ``graphopt.``, which saving
#: strips.
KEY = "graphopt:variants"


@dataclass(frozen=True)
class VariantRecord:
    """The record of a variant in a file.

    Attributes:
        name: its name, such as ``static-1``.
        guard: its assumptions.
        runs: the number of profiled runs that use the variant.
        nodes: its number of nodes.
        file: its file in a bundle; ``None`` for a branch of a model.
        session_options: the session options recommended for it in a bundle, unparsed; by default those of the
            general model.
    """

    name: str
    guard: Guard
    runs: int
    nodes: int
    file: str | None = None
    session_options: str | None = None

    def in_file(self, file: str, session_options: str | None) -> VariantRecord:
        """This record with a file and its recommended session options."""
        return replace(self, file=file, session_options=session_options)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found = {"name": self.name, "runs": self.runs, "nodes": self.nodes, "guard": self.guard.to_dict()}
        optional = {"file": self.file, "session_options": self.session_options}
        return found | {name: text for name, text in optional.items() if text is not None}

    @classmethod
    def from_dict(cls, data: Any) -> VariantRecord:
        """Parse the result of :meth:`to_dict`.

        Raises:
            InvalidModel: ``data`` is malformed.
        """
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            raise InvalidModel("malformed variant record: no name")
        file, runs, nodes = data.get("file"), data.get("runs", 0), data.get("nodes", 0)
        if not (file is None or isinstance(file, str)) or type(runs) is not int or type(nodes) is not int:
            raise InvalidModel(f"unsupported record format for variant {data['name']!r}")
        options = data.get("session_options")
        text = options if isinstance(options, str) else None
        return cls(data["name"], Guard.from_dict(data.get("guard")), runs, nodes, file, text)


def record_variants(model: ir.Model, variants: list[VariantRecord]) -> None:
    """Store the records of its variants in the metadata of ``model``."""
    model.metadata_props[KEY] = json.dumps([variant.to_dict() for variant in variants], ensure_ascii=False)


def read_variants(model: ir.Model) -> list[VariantRecord]:
    """The records of variants in the metadata of ``model``; empty if they are malformed."""
    try:
        data = json.loads(model.metadata_props.get(KEY, "[]"))
        return [VariantRecord.from_dict(item) for item in data] if isinstance(data, list) else []
    except (ValueError, RecursionError, InvalidModel):  # the model runs without these records
        return []
