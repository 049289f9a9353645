"""``--profile`` of ``optimize`` and ``compile``: variants, in one model or in a bundle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.options import option_relations
from graphopt.cli.options.parameter_types import Count, reads_data
from graphopt.cli.options.shared_options import values_of
from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.specialization.build_variants import Specialization

_with_profile = partial(option_relations.option, requires="--profile", hint="graphopt profile records one")


@dataclass(frozen=True)
class VariantValues:
    """The values of :data:`variant_options`."""

    profile: Path | None
    fusion_strategy: str | None
    variants: int | None

    def specialization(self) -> Specialization | None:
        """The profile and the options that control its use; ``None`` without a profile.

        Raises:
            UsageError: the options contradict each other.
            InvalidModel: the profile can't be read.
        """
        if self.profile is None:
            return None
        from graphopt.profile import FusionStrategy, Profile
        from graphopt.specialization.build_variants import Specialization

        strategy = self.fusion_strategy
        return Specialization(
            Profile.read(self.profile),
            FusionStrategy() if strategy is None else FusionStrategy.parse(strategy),
            self.variants,
        )


@dataclass(frozen=True)
class SpecializeValues(VariantValues):
    """The values of :data:`specialize_options`."""

    emit: str | None
    single_file: bool
    pin_shapes: bool

    @property
    def bundle(self) -> bool:
        """Whether the output is a folder rather than a model."""
        return self.profile is not None and self.emit == "bundle"

    def specialization(self) -> Specialization | None:
        """As for :class:`VariantValues`, with the options about one model."""
        if self.bundle and (self.single_file or self.pin_shapes):
            option = "--single-file" if self.single_file else "--pin-shapes"
            raise UsageError(
                f"{option} is about one model, and a bundle is a folder of several",
                hint=f"leave out {option}, or write one model by --emit model",
            )
        found = super().specialization()
        return None if found is None else replace(found, single_file=self.single_file, pins=self.pin_shapes)


_VARIANT_OPTIONS = (
    option_relations.option(
        "--profile",
        type=reads_data,
        metavar="FILE.json",
        help="Specialize for the inputs that `graphopt profile` recorded, behind guards"
        " (docs/specialize.md).",
    ),
    _with_profile(
        "--fusion-strategy",
        metavar="TEXT",
        help="Number of specializations of each kind, in order, or always-dynamic (docs/specialize.md)."
        "  [default: static:2,dynamic:10]",
    ),
    _with_profile("--variants", type=Count(1), metavar="N", help="Maximum number of variants."),
)

#: Options of variants, for a command that always writes a bundle; the command receives ``variants``.
variant_options = values_of(VariantValues, "variants", "Specializing", *_VARIANT_OPTIONS)

#: Options of variants in one model or in a bundle; the command receives ``variants``.
specialize_options = values_of(
    SpecializeValues,
    "variants",
    "Specializing",
    *_VARIANT_OPTIONS,
    _with_profile(
        "--emit",
        type=click.Choice(["model", "bundle"]),
        help="One model for any onnxruntime, or a folder for `graphopt run` and graphopt.load."
        "  [default: model]",
    ),
    _with_profile(
        "--single-file",
        is_flag=True,
        help="Keep all weights in the model file; variants may run slower than with a separate file.",
    ),
    _with_profile(
        "--pin-shapes",
        is_flag=True,
        help="With --emit model: declare the input sizes of each variant to onnxruntime, which copies the"
        " inputs.",
    ),
)


def bundle_folder(output: str) -> Path:
    """The folder ``output`` for a bundle, checked before any other work.

    Raises:
        UsageError: a bundle can't be written to ``output``.
    """
    from graphopt.cli.files.check_output_paths import check_folder
    from graphopt.specialization.bundle.save import check_replaceable

    folder = Path(output)
    check_folder(folder)
    check_replaceable(folder)
    return folder
