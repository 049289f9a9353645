"""Compare the models of a bundle with the original."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphopt import config, ir
from graphopt.compiler.environment import Environment
from graphopt.errors import UsageError
from graphopt.specialization.bundle.names import GENERAL_NAME, bundle_at
from graphopt.specialization.specialize_inputs import specialize_inputs
from graphopt.verification.verdict import Row, Verdict

if TYPE_CHECKING:
    from graphopt.specialization.bundle.loaded_bundle import Bundle


def bundle_of(env: Environment, candidate: object) -> Bundle | None:
    """The bundle that ``candidate`` is or names; ``None`` if it is a model.

    A named bundle is not trusted: its kernels are built from their definitions.
    """
    from graphopt.specialization.bundle.loaded_bundle import Bundle

    if isinstance(candidate, Bundle):
        return candidate
    if not isinstance(candidate, (str, os.PathLike)) or bundle_at(Path(candidate)) is None:
        return None
    with config.using(env.settings):
        return Bundle(candidate)


class Pair(NamedTuple):
    """A model of a bundle, and the model to compare it with.

    Attributes:
        name: the name of the variant, or ``general``.
        env: the options of the comparison.
        original: the original, for a variant with its inputs declared according to the guard.
        candidate: the model of the bundle.
        libraries: the libraries of its kernels.
    """

    name: str
    env: Environment
    original: ir.Model
    candidate: ir.Model
    libraries: tuple[str, ...]


def pairs(env: Environment, original: ir.Model, bundle: Bundle) -> Iterator[Pair]:
    """The models of ``bundle`` to compare with ``original``, ``general`` last.

    A variant is compared on inputs that its guard accepts, and the general model on all inputs, or on the
    given ones.

    Raises:
        UsageError: an option fixes or relates dims, although a bundle is compared at all of its sizes.
    """
    for option, value in (
        ("--dim", env.options["dims"]),
        ("--dim-range", env.options["dim_ranges"]),
        ("--dim-relation", env.options["dim_relations"]),
    ):
        if value:
            raise UsageError(
                f"{option} has no effect on a bundle: it is compared at all of its sizes",
                hint="leave it out; --input-shape sets sizes for the general model",
            )
    of_bundle = env.having({"device": bundle.device})
    guards = {variant.name: variant.guard for variant in bundle.manifest.variants}
    for name in bundle.names:
        yield Pair(
            name,
            of_bundle if name == GENERAL_NAME else of_bundle.without("inputs"),
            specialize_inputs(original, guards[name]) if name in guards else original,
            bundle.model(name),
            bundle.libraries(name).paths,
        )


def joined(found: Mapping[str, Verdict]) -> Verdict:
    """The verdict about several models: the comparisons of all, each with the name of its model."""

    def rows(name: str, compared: Iterable[Row]) -> list[Row]:
        return [replace(row, binding=f"{name}: {row.binding}") for row in compared]

    items = found.items()
    return Verdict(
        rows=tuple(row for name, one in items for row in rows(name, one.rows)),
        signature=tuple(f"{name}: {change}" for name, one in items for change in one.signature),
        skipped=tuple(
            replace(skip, what=f"{name}: {skip.what}") for name, one in items for skip in one.skipped
        ),
        unverifiable=next(
            (f"{one.unverifiable} (model {name})" for name, one in items if one.unverifiable is not None),
            None,
        ),
        device=next((one.device for one in found.values()), "CPU"),
        seconds=sum(one.seconds for one in found.values()),
        peak_bytes=max((one.peak_bytes for one in found.values()), default=0),
        general_rows=tuple(row for name, one in items for row in rows(name, one.general_rows)),
        groups=tuple(
            replace(group, group=f"{name}: {group.group}") for name, one in items for group in one.groups
        ),
    )
