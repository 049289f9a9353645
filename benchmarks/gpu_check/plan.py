"""The sections in the order in which they run: the most informative first."""

from __future__ import annotations

from benchmarks.gpu_check.section import Section
from benchmarks.gpu_check.sections import (
    bandwidth,
    executor,
    kernels,
    models,
    placement,
    random_groups,
    smoke,
    trainer,
)

SECTIONS: tuple[Section, ...] = tuple(
    module.SECTION
    for module in (smoke, kernels, bandwidth, models, executor, trainer, placement, random_groups)
)
