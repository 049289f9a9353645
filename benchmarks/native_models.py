"""Models with native kernels, as benchmarks run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from graphopt import config, ir
from graphopt.context import context_for
from graphopt.fusion.backend import backend_for
from graphopt.fusion.group_functions import groups_of
from graphopt.optimization_attempt import prepare
from graphopt.ort.devices import CPU, Device
from graphopt.ort.session_options import SessionChoice
from graphopt.util.disk_store import Store


@dataclass(frozen=True)
class Native:
    """A model with groups, and its session options.

    Attributes:
        groups: names of the groups that have kernels, once for each call.
    """

    model: bytes
    choice: SessionChoice
    groups: list[str]


def natives(
    models: Sequence[onnx.ModelProto],
    pipeline: str,
    folder: Path,
    device: Device = CPU,
    levels: Sequence[int] | None = None,
) -> list[Native]:
    """The models after ``pipeline``, and one library with all their kernels for ``device``.

    Args:
        folder: a folder for the store of libraries.
        levels: the CPU levels of the kernels; by default all.
    """
    backend = backend_for(device)
    assert backend is not None, f"no kernels for {device}"
    made = []
    for proto in models:
        model = ir.from_proto(proto)
        attempt = prepare(config.current(), pipeline=pipeline, device=device).on(model)
        with context_for(model, attempt.options) as cx:  # without a library for each model
            attempt.pipeline.run(model, cx)
        made.append(model)
    groups = [[group for group in groups_of(model) if group.kernel is not None] for model in made]
    kernels = {group.name: group.kernel for found in groups for group in found if group.kernel is not None}
    libraries: tuple[str, ...] = ()
    if kernels:
        libraries = (str(backend.build(list(kernels.values()), Store(folder), levels=levels)),)
    return [
        Native(
            ir.to_bytes(model),
            SessionChoice(libraries=libraries),
            [group.name for group in found for _ in range(group.calls)],
        )
        for model, found in zip(made, groups, strict=True)
    ]
