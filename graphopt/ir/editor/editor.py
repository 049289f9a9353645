"""The only interface that changes a model."""

from __future__ import annotations

from graphopt.ir.editor.bodies import BodyEdits
from graphopt.ir.editor.functions import FunctionEdits
from graphopt.ir.editor.imports_and_ir_version import VersionEdits
from graphopt.ir.editor.inputs_and_outputs import InputOutputEdits
from graphopt.ir.editor.metadata import MetadataEdits


class Editor(BodyEdits, InputOutputEdits, FunctionEdits, VersionEdits, MetadataEdits):
    """The only interface that changes ``model``.

    It keeps names unique and the signature intact, counts edits, transfers provenance, and notifies
    listeners, so that analyses remain up to date.

    Attributes:
        epoch: increases with every edit; a cache filled in another epoch is stale.
        counts: number of edits by kind, without those that were undone.
        tally: nodes added minus nodes removed, by domain and operator, since it was last cleared.
        listeners: notified of replaced values.
        stage: the name of the pass that runs, for provenance.
        actor: the rule or pass that rewrites.
        derivations: the number of recorded derivations of nodes.
        trusts_shape: whether the declared shape of an output is correct; real models contain
            wrong shapes, which onnxruntime trusts. By default, all shapes are trusted; shape facts replace
            this function.
    """
