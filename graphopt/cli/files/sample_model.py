"""The sample model, the default of commands: a small BERT-like encoder, part of the package."""

from __future__ import annotations

from pathlib import Path

#: Written by ``samples/models.py``, as ``transformer``.
PATH = Path(__file__).with_name("sample.onnx")
#: Number of nodes of the sample model without constants, stored here so that the note does not load the
#: model.
NODES = 204

NAME = "sample transformer"
NOTE = f"no model given: a {NAME} ({NODES} nodes); `graphopt sample -o FILE` writes it"
