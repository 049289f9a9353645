"""``--save-repro``: record a command, the files that it reads, and its outcome."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import config, publish
from graphopt.cli.files.check_output_paths import make_folder
from graphopt.cli.invocation import Invocation
from graphopt.cli.options.options_as_flags import as_flags
from graphopt.cli.options.parameter_types import ReadsArrays, ReadsData, ReadsFolder, ReadsModel, Runs, Writes
from graphopt.cli.reproducer.recorded_command import (
    IN,
    LEFT_OUT,
    OUT,
    PIPELINE,
    README,
    SETTINGS,
    Outcome,
    Recorded,
    given,
)
from graphopt.debug.command_checks import keep_files
from graphopt.errors import GraphoptError, unwritable
from graphopt.optimize_options import OptimizeOptions

if TYPE_CHECKING:
    from graphopt import ir


class Recording:
    """Writes the reproducer of one command.

    Args:
        folder: the folder of the reproducer, new or empty.
        settings: the current settings.
        command: the whole command line.
        options: the options of ``optimize`` that ``--config`` read, which the recorded command line contains.
        names_pipeline: whether the settings name the pipeline, whose default depends on the command.

    Raises:
        UsageError: the folder can't be written.
    """

    def __init__(
        self,
        folder: Path,
        context: click.Context,
        settings: config.Settings,
        command: Sequence[str],
        options: OptimizeOptions | None = None,
        *,
        names_pipeline: bool = True,
    ) -> None:
        from graphopt.debug.reproducer import versions

        self._folder = make_folder(folder)
        self._settings = settings
        self._kept: dict[str, str] = {}
        self._missing: list[str] = []
        self._targets: dict[str, str] = {}
        self._stdin = context.ensure_object(Invocation).stdin
        try:
            name = context.info_name or ""
            words = command[command.index(name) + 1 :]
            applied = [word for key, value in (options or {}).items() for word in as_flags(key, value)]
            arguments = [name, *applied, *self._arguments(given(context.command, context, words))]
            unset = () if names_pipeline else (PIPELINE,)
            text = config.as_toml(replace(settings, costs=self._costs()), private=False, without=unset)
            publish.write(folder / SETTINGS, text)
            self._recorded = Recorded(
                tuple(command),
                tuple(arguments),
                _pipeline(context, settings),
                versions(),
                self._kept,
                tuple(self._missing),
            )
            self._write()
        except OSError as error:
            raise unwritable(folder, error) from error

    def ended(self, outcome: Outcome) -> None:
        """Add the outcome of the command."""
        self._recorded = replace(self._recorded, outcome=outcome)
        self._write()

    def _write(self) -> None:
        self._recorded.save(self._folder)
        publish.write(self._folder / README, _readme(self._recorded).encode(errors="surrogateescape"))

    # The command line ---------------------------------------------------------------------------

    def _arguments(self, values: Sequence[tuple[click.Parameter, Any]]) -> list[str]:
        """The given arguments, with the paths of the recorded files."""
        options: list[str] = []
        operands: list[str] = []
        for parameter, value in values:
            if parameter.name in LEFT_OUT:
                continue
            if not isinstance(parameter, click.Option):
                operands.append(self._text(parameter, value))
                continue
            name = max(parameter.opts, key=len)
            if parameter.count:
                options += [name] * value
            elif parameter.is_flag:
                options.append(name if value else parameter.secondary_opts[0])
            else:
                options += [name, self._text(parameter, value)]
        return [*options, *(["--"] if any(word.startswith("-") for word in operands) else []), *operands]

    def _text(self, parameter: click.Parameter, value: Any) -> str:
        """One value of ``parameter``, as written in the reproducer."""
        match parameter.type:
            case ReadsModel():
                if value == "-" and self._stdin is not None:
                    return self._keep_model(self._stdin)
                return self._keep_model_or_bundle(Path(value))
            case ReadsFolder():
                return self._keep_folder(Path(value))
            case ReadsData():
                keep = self._keep_folder if Path(value).is_dir() else self._keep_file
                return keep(Path(value))
            case ReadsArrays():
                name, colon, file = str(value).rpartition(":")
                return f"{name}{colon}{self._keep_file(Path(file))}"
            case Writes():
                return self._target(str(value))
            case Runs():
                return keep_files(str(value), self._keep_file)
        return str(value)

    # Inputs -------------------------------------------------------------------------------------

    def _new_path(self, path: Path) -> Path:
        """The destination of ``path``, in a separate folder, so that names and external data do not clash."""
        target = self._folder / IN / str(len(self._kept) + 1) / path.name
        self._kept[target.relative_to(self._folder).as_posix()] = str(path.absolute())
        target.parent.mkdir(parents=True)
        return target

    def _name(self, target: Path) -> str:
        return target.relative_to(self._folder).as_posix()

    def _keep_file(self, path: Path) -> str:
        target = self._new_path(path)
        self._copy(path, target)
        return self._name(target)

    def _costs(self) -> str:
        """The setting ``costs`` that selects the current table on any machine that reruns the command."""
        from graphopt.cost.select_table import AUTO, SHIPPED, calibrated

        if self._settings.costs not in (AUTO, SHIPPED):
            return self._keep_file(Path(self._settings.costs))
        file = calibrated(self._settings) if self._settings.costs == AUTO else None
        if file is None:
            return SHIPPED
        target = self._new_path(Path("costs.json"))
        target.write_text(file, encoding="utf-8")
        return self._name(target)

    def _keep_folder(self, path: Path) -> str:
        target = self._new_path(path)
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            self._missing.append(str(path))
        return self._name(target)

    def _keep_model_or_bundle(self, path: Path) -> str:
        from graphopt.specialization.bundle.names import bundle_at

        bundle = bundle_at(path)
        if bundle is None:
            return self._keep_models(path) if path.is_dir() else self._keep_model(path)
        kept = self._keep_folder(bundle) if bundle.is_dir() else self._keep_file(bundle)
        return kept if bundle == path else f"{kept}/{path.name}"

    def _keep_model(self, path: Path) -> str:
        """Copy the file and its external data; if the data are in another folder, rewrite the model."""
        from graphopt import ir

        target = self._new_path(path)
        if not self._copy(path, target):
            return self._name(target)
        model = self._copy_data(path, target)
        if model is not None and _loaded(target) is None:
            shutil.rmtree(target.parent)
            target.parent.mkdir()
            ir.save(model, target, threshold=1)
        return self._name(target)

    def _keep_models(self, folder: Path) -> str:
        """Copy the models in ``folder``, and their external data."""
        target = self._new_path(folder)
        target.mkdir()
        for path in sorted(folder.glob("*.onnx")):
            if self._copy(path, target / path.name):
                self._copy_data(path, target / path.name)
        return self._name(target)

    def _copy_data(self, path: Path, target: Path) -> ir.Model | None:
        """Copy the external data of a model that are in the model's folder; returns the model."""
        home = path.parent.resolve()
        model = _loaded(path, self._settings.allow_external)
        for file in _named_in(path) if model is None else _external(model):
            if file.is_relative_to(home):
                self._copy(file, target.parent / file.relative_to(home))
        return model

    def _copy(self, path: Path, target: Path) -> bool:
        """Copy a file, if it exists; returns whether it existed."""
        if not path.is_file():
            self._missing.append(str(path))
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)  # scripts remain executable
        return True

    # Outputs ------------------------------------------------------------------------------------

    def _target(self, text: str) -> str:
        """The destination of an output; that of a folder ends with a slash."""
        is_folder = text.endswith("/") or Path(text).is_dir()
        name = Path(text).name or "folder"
        stem, taken = name, self._targets.values()
        number = 1
        while name in taken:
            number += 1
            name = f"{number}-{stem}"
        self._targets[text] = name
        return f"{OUT}/{name}{'/' if is_folder else ''}"


def _loaded(path: Path, allow_external: Sequence[Path] = ()) -> ir.Model | None:
    """The model in ``path``; ``None`` if it can't be loaded: the command itself reports the error."""
    from graphopt import ir

    try:
        return ir.load(path, allow_external=allow_external)
    except Exception:
        return None


def _external(model: ir.Model) -> list[Path]:
    """The files of external data of ``model``."""
    from graphopt.instrument.model_summary import external_bytes

    return [Path(file).resolve() for file in external_bytes(model)]


def _named_in(path: Path) -> list[Path]:
    """The files next to ``path`` whose names occur in it: external data of a model that can't be loaded."""
    content = path.read_bytes()
    files = [file for file in sorted(path.parent.iterdir()) if file.is_file() and file != path]
    return [file.resolve() for file in files if file.name.encode() in content]


def _pipeline(context: click.Context, settings: config.Settings) -> str | None:
    """The passes of the command as pipeline text, with named pipelines expanded."""
    if "pre_passes" not in context.params:
        return None
    from graphopt.cli.options.resolve_options import chosen_pipeline
    from graphopt.debug.trial_run import steps_text
    from graphopt.passes.pipelines import make_pipeline

    values = dict(context.params)
    try:
        text = chosen_pipeline(values) or settings.pipeline
        return ",".join(steps_text(make_pipeline(text, values["pre_passes"], values["post_passes"])))
    except GraphoptError:  # the command reports the error
        return None


def _readme(recorded: Recorded) -> str:
    outcome = recorded.outcome
    lines = [
        f"# graphopt {recorded.arguments[0]}",
        "",
        f"This was run: `{shlex.join(recorded.command)}`.",
        "",
    ]
    if outcome is None:
        lines.append("It did not end.")
    else:
        lines.append(f"It ended with status {outcome.status}{f': {outcome.error}' if outcome.error else '.'}")
    lines += [
        "",
        "Rerun it, and compare the outcomes, with",
        "",
        "    graphopt replay .",
        "",
        "or by hand, in this folder, with",
        "",
        f"    mkdir -p {OUT} && {shlex.join(['graphopt', *recorded.arguments])}",
        "",
        f"- `{SETTINGS}`: every setting that was in force, except those about stores and folders",
        *(f"- `{name}`: {origin}" for name, origin in recorded.kept.items()),
        *(f"- not kept, because there is no such file: {path}" for path in recorded.missing),
    ]
    if recorded.pipeline:
        lines += ["", "The passes:", "", f"    {recorded.pipeline}"]
    lines += ["", "The versions:", "", *(f"- {name} {text}" for name, text in recorded.versions.items())]
    return "\n".join(lines) + "\n"
