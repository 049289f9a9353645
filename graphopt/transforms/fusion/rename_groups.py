"""rename-groups: update the names of native groups, which are digests of their contents.

onnxruntime selects kernels by name only. A changed function with its old name would run the kernel of the
unchanged function if an older library contains it.
"""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.group_functions import name_of, note_signatures, signatures_of
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class RenameGroups(Pass):
    """Rename native groups whose contents changed, so that they have kernels.

    This is the last pass on models with groups.
    """

    name: ClassVar[str] = "rename-groups"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Rename groups whose names don't match their contents; equal groups are merged."""
        signatures = signatures_of(model)
        names: dict[_Key, str] = {}
        for key, function in model.functions.items():
            if key[0] == graphopt_operators.NATIVE_DOMAIN and function.name in signatures:
                name = name_of(function, signatures[function.name])
                if name != function.name:
                    names[key] = name
        if not names:
            return
        calls: dict[_Key, list[ir.Node]] = {key: [] for key in names}
        for graph in ir.graphs_of(model):
            for node in graph:
                if node.op_identifier() in calls:
                    calls[node.op_identifier()].append(node)
        changed = [
            (model.functions[key], calls[key], name, signatures[key[1]]) for key, name in names.items()
        ]
        for number, (function, own, _, _) in enumerate(
            changed
        ):  # a group may need the name that another group still has
            cx.edit.rename_function(function, own, f"changed {number}")
        for function, own, name, signature in changed:
            known = model.functions.get((graphopt_operators.NATIVE_DOMAIN, name, ""))
            if known is None:
                cx.edit.rename_function(function, own, name)
            else:
                for call in own:
                    cx.edit.redirect(call, known)
                cx.edit.remove_function(function)
            signatures[name] = signature
        note_signatures(model, signatures, cx)
        cx.remarks.append(f"{counted(len(names), 'native group')} changed and renamed")
