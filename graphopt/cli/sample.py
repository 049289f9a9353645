"""The sample model of commands that are given none: a small BERT-like encoder, part of the package."""

from __future__ import annotations

from pathlib import Path

#: Written by ``samples/models.py``, as ``transformer``.
PATH = Path(__file__).with_name("sample.onnx")
#: Its nodes, constants not counted; a constant, so that naming it loads nothing.
NODES = 204

NAME = "sample transformer"
NOTE = f"no model given: a {NAME} ({NODES} nodes); `graphopt sample -o FILE` writes it"
