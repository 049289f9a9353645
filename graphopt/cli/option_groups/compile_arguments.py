"""The arguments of ``compile`` in the record of a bundle, for ``compile --config BUNDLE``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar

from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.specialization import VariantValues
from graphopt.errors import InvalidModel, UsageError
from graphopt.recorded_settings.plain_values import omissions
from graphopt.util.lazy_dataclass import dataclass

T = TypeVar("T")

#: The recorded operation of ``graphopt compile``.
OPERATION = "aot_compile"


@dataclass(frozen=True)
class CompileArguments:
    """Recorded arguments; the defaults without a record.

    Attributes:
        where: the bundle.
        profile: a description of the profile, whose contents a record lacks.
        strategy, most: the number and kinds of variants.
        pipeline: the passes, if they are the default of ``optimize``; others are recorded as a setting.
        cpu_levels: x86-64 levels of kernels.
        archive: whether the bundle is a zip file.
    """

    where: str = ""
    profile: str | None = None
    strategy: str | None = None
    most: int | None = None
    pipeline: str | None = None
    cpu_levels: tuple[int, ...] = ()
    archive: bool = False

    @classmethod
    def of(cls, run: Run) -> Self:
        """The arguments that ``--config`` reads.

        Raises:
            InvalidModel: the record is damaged.
        """
        record = run.sources.record
        if record is None or record.operation != OPERATION:
            return cls()
        where, arguments = str(run.sources.config_file), record.arguments
        levels = _typed(arguments, "cpu_levels", list, where) or []
        if not all(isinstance(level, int) for level in levels):
            raise _damaged("cpu_levels", levels, where)
        return cls(
            where=where,
            profile=next(omissions(arguments.get("profile")), None),
            strategy=_typed(arguments, "strategy", str, where),
            most=_typed(arguments, "most", int, where),
            pipeline=_typed(arguments, "pipeline", str, where),
            cpu_levels=tuple(levels),
            archive=_typed(arguments, "archive", bool, where) or False,
        )

    def variants(self, given: VariantValues) -> VariantValues:
        """``given`` with the recorded values of options that are not given.

        Raises:
            UsageError: the record is of a bundle for a profile, and no profile is given.
        """
        if given.profile is None:
            if self.profile is not None:
                raise UsageError(
                    f"{self.where}: profile was {self.profile}, which is not recorded",
                    hint="give --profile again",
                )
            return given
        return replace(
            given,
            fusion_strategy=self.strategy if given.fusion_strategy is None else given.fusion_strategy,
            variants=self.most if given.variants is None else given.variants,
        )


def _typed(arguments: Mapping[str, Any], name: str, kind: type[T], where: str) -> T | None:
    value = arguments.get(name)
    if value is None or type(value) is kind:
        return value
    raise _damaged(name, value, where)


def _damaged(name: str, value: object, where: str) -> InvalidModel:
    return InvalidModel(f"{where}: the record of settings is damaged: {name} is {value!r}")
