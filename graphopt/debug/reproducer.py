"""Reproducers: folders with everything needed to reproduce a fault.

A folder contains ``model.onnx``, ``case.json`` (passes, options, allowed rewrites, the check, versions, the
command), a ``README.md``, and ``inputs.npz`` if the fault depends on inputs that can be stored in a file.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.context import Options
from graphopt.cost import Costs, shipped
from graphopt.debug.checks import CheckOptions, make_check
from graphopt.debug.command_checks import CommandNotRun, keep_files
from graphopt.debug.culprit import Culprit
from graphopt.debug.trial_run import IsolatedTrial, RunTrial, Trial, steps_text
from graphopt.errors import InvalidModel, UsageError, unwritable
from graphopt.inputs.feeds import Feeds, InputOptions
from graphopt.numerics import Numerics
from graphopt.ort.devices import CPU, choose, parse_device
from graphopt.ort.installation import version_of
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import make_pipeline
from graphopt.process.child import Child
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from graphopt.util import npz
from graphopt.util.lazy_dataclass import dataclass

_FORMAT = 1
_PACKAGES = ("graphopt", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy", "ml_dtypes")
_MODEL, _INPUTS, CASE, _README = "model.onnx", "inputs.npz", "case.json", "README.md"
#: Folder for files that a command names; no other file has this name.
_FILES = "check"


def versions() -> dict[str, str]:
    """Versions of Python and of the relevant packages."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    return found | {package: version for package in _PACKAGES if (version := version_of(package))}


@dataclass(frozen=True)
class Case:
    """The contents of a reproducer besides its model: the run, and the check that fails.

    Attributes:
        what: the rewrite or pass at fault.
        reason: the failure of the check.
        pipeline: the passes, as texts of :func:`graphopt.debug.trial_run.steps_text`.
        lines: the nodes around the rewrite at fault.
        command: the command line that found the fault.
        versions: versions of Python and of the relevant packages.
        settings: the record of the settings of the run, as data, if there is one.
    """

    what: str
    reason: str
    pipeline: tuple[str, ...]
    options: Options
    limits: RewriteLimit
    check: CheckOptions
    lines: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=versions)
    settings: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The case for JSON, without the caller's own rules, which are code."""
        options, limits = asdict(replace(self.options, rules=())), asdict(self.limits)
        del options["rules"]
        costs = self.options.costs
        encoded = {
            "numerics": self.options.numerics.name,
            "device": str(self.options.device).lower(),
            "costs": None if costs is None or costs == shipped(costs.device) else costs.to_dict(),
        }
        check = {
            "kind": self.check.kind,
            "growth": self.check.growth,
            "seconds": self.check.seconds,
            "memory": self.check.memory,
            "device": str(self.check.device),
            "seed": self.check.inputs.seed,
            "shapes": {name: list(shape) for name, shape in self.check.inputs.shapes.items()},
            "ranges": {name: list(found) for name, found in self.check.inputs.ranges.items()},
        }
        return {
            "format": _FORMAT,
            "what": self.what,
            "reason": self.reason,
            "pipeline": list(self.pipeline),
            "options": _sets_as_lists(options) | encoded,
            "limits": {
                **_sets_as_lists(limits),
                "only": _places(self.limits.only),
                "without": _places(self.limits.without),
            },
            "check": check,
            "lines": list(self.lines),
            "command": list(self.command),
            "versions": self.versions,
            "settings": None if self.settings is None else dict(self.settings),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], folder: Path) -> Case:
        """Parse the result of :meth:`to_dict`, with the inputs in ``folder``, if any."""
        options, limits, check = dict(data["options"]), dict(data["limits"]), data["check"]
        options["numerics"] = Numerics[options["numerics"]]
        options["dim_ranges"] = _ranges(options.get("dim_ranges", {}))
        only = options["only"]
        options |= {"skip": frozenset(options["skip"]), "only": None if only is None else frozenset(only)}
        options["own"] = frozenset(options.get("own", ()))
        options["refused"] = frozenset(map(tuple, options.get("refused", ())))
        options["withheld"] = tuple(map(tuple, options.get("withheld", ())))
        options["share_buffers"] = tuple(map(tuple, options.get("share_buffers", ())))
        options["weights"] = tuple(options.get("weights", ()))
        scopes = options.get("strict_fusion", {})
        options["strict_fusion"] = {name: frozenset(nodes) for name, nodes in scopes.items()}
        options["device"] = parse_device(options.get("device", "cpu")) or CPU
        costs = options.get("costs")
        options["costs"] = None if costs is None else Costs.from_dict(costs)
        only = limits["only"]
        limits["only"] = None if only is None else frozenset(RewriteSite(*place) for place in only)
        limits["without"] = frozenset(RewriteSite(*place) for place in limits["without"])
        limits |= {key: frozenset(limits[key]) for key in ("owners", "skip")}
        device, _ = choose(str(check["device"]).lower(), allow_fallback=True)
        files = ((None, folder / _INPUTS),) if (folder / _INPUTS).exists() else ()
        shapes = {} if files else {name: tuple(shape) for name, shape in check["shapes"].items()}
        return cls(
            data["what"],
            data["reason"],
            tuple(data["pipeline"]),
            Options(**options),
            RewriteLimit(**limits),
            CheckOptions(
                check["kind"],
                options["numerics"],
                InputOptions(shapes, files, check["seed"], _ranges(check.get("ranges", {}))),
                device,
                check["growth"],
                check["seconds"],
                check.get("memory"),
            ),
            tuple(data["lines"]),
            tuple(data["command"]),
            data["versions"],
            data.get("settings"),
        )


def save_culprit(
    folder: Path,
    culprit: Culprit,
    trial: Trial,
    check: CheckOptions,
    command: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> bool:
    """Write a reproducer of ``culprit``; returns whether its check fails on replay.

    ``command`` and ``settings`` are recorded as in :class:`Case`. The reproducer contains the model
    immediately before the rewrite, and only this rewrite; or, if that does not fail, the whole run up to the
    rewrite.
    """
    for model, pipeline, limits, feeds in _forms(culprit, trial):
        case = Case(
            culprit.title,
            culprit.reason,
            tuple(steps_text(pipeline)),
            trial.options,
            limits,
            check,
            tuple(culprit.lines),
            tuple(command),
            settings=settings,
        )
        save(folder, model, case, feeds)
        with contextlib.suppress(CommandNotRun):  # the command needs more files than it names
            if replay(folder, allow_command=True) is not None:
                return True
    return False


def _forms(culprit: Culprit, trial: Trial) -> Iterator[tuple[ir.Model, Pipeline, RewriteLimit, Feeds | None]]:
    """Candidates for reproducing the fault, the smallest first."""
    faulty_pass = next((item for item in trial.pipeline.passes() if str(item) == culprit.pass_text), None)
    alone = RewriteLimit(first=0)
    if culprit.place is not None and culprit.number:
        alone = RewriteLimit(only=frozenset([culprit.place]))
    for feeds in (culprit.feeds, None) if culprit.feeds is not None else (None,):
        if faulty_pass is not None:
            yield culprit.before, Pipeline((faulty_pass,)), alone, feeds
        yield trial.model, trial.pipeline, culprit.limits, feeds


def save(folder: Path, model: ir.Model, case: Case, feeds: Feeds | None = None) -> None:
    """Write a reproducer.

    Raises:
        UsageError: the folder can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        case = replace(case, check=_with_copied_files(case.check, folder))
        ir.save(model, folder / _MODEL)
        (folder / _INPUTS).unlink(missing_ok=True)
        if feeds and npz.first_other(feeds) is None:
            npz.write(folder / _INPUTS, feeds)
        publish.write(folder / _README, _readme(case, bool(feeds)))
        text = json.dumps(case.to_dict(), indent=2, ensure_ascii=False)
        publish.write(folder / CASE, text + "\n")
    except OSError as error:
        raise unwritable(folder, error) from error


def _with_copied_files(check: CheckOptions, folder: Path) -> CheckOptions:
    """``check`` for running in ``folder``, to which the files named by its command are copied."""
    if not check.is_command:
        return check
    shutil.rmtree(folder / _FILES, ignore_errors=True)
    names: list[str] = []

    def keep(file: Path) -> str:
        name = f"{_FILES}/{len(names) + 1}/{file.name}"
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(file, folder / name)
        names.append(name)
        return name

    return replace(check, kind=keep_files(check.kind, keep))


def load(folder: Path) -> Case:
    """Read the case in ``folder``.

    Raises:
        UsageError: the folder contains no case.
        InvalidModel: the case is damaged.
    """
    try:
        data = json.loads((folder / CASE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder} is not a reproducer: it has no {CASE}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {folder / CASE}: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise UsageError(f"{folder / CASE} has another format than {_FORMAT}")
    try:
        return Case.from_dict(data, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidModel(f"{folder / CASE} is damaged: {type(error).__name__}: {error}") from error


def replay(folder: Path, *, allow_command: bool = False) -> str | None:
    """Run the case in ``folder`` again; returns the failure of the check, or ``None`` if it passes.

    Raises:
        UsageError: the folder has no case, or the check is a command although commands are not allowed.
        CommandNotRun: the command could not run.
    """
    case = load(folder)
    if case.check.is_command and not allow_command:
        raise UsageError(
            f"{folder} would run the command {case.check.kind!r}",
            hint="use --allow-command if you trust the folder",
        )
    model = ir.load(folder / _MODEL)
    trial = Trial(model, make_pipeline((), case.pipeline), case.options)
    return check_failure(trial, replace(case.check, folder=folder), case.limits)


def check_failure(trial: Trial, check: CheckOptions, limits: RewriteLimit) -> str | None:
    """The failure of the check on the result of ``trial`` under ``limits``; ``None`` if it passes."""
    with helper() as child:
        outcome = isolated(trial, check, child)(limits)
        if outcome.error is not None:
            return outcome.error
        assert outcome.model is not None
        with make_check(check, trial.model) as judge:
            return judge(outcome.model)


def helper() -> Child:
    """A process for runs that may crash."""
    return Child(preload=("graphopt.debug.trial_run",))


def isolated(trial: Trial, check: CheckOptions, child: Child) -> RunTrial:
    """``trial``, run in ``child`` if the check is for crashes."""
    if check.kind != "crash":
        return trial
    return IsolatedTrial(trial.model, trial.pipeline, trial.options, child=child)


def without_files(check: CheckOptions) -> CheckOptions:
    """``check`` with generated inputs only, for models with other inputs."""
    inputs = InputOptions(seed=check.inputs.seed, ranges=check.inputs.ranges)
    return replace(check, inputs=inputs)


def _sets_as_lists(value: Any) -> Any:
    """``value`` with its sets, which JSON lacks, as sorted lists."""
    if isinstance(value, Mapping):
        return {key: _sets_as_lists(item) for key, item in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value


def _places(places: frozenset[RewriteSite] | None) -> list[list[str]] | None:
    return None if places is None else [[place.owner, place.node] for place in sorted(places)]


def _ranges(lists: dict[str, list[Any]]) -> dict[str, tuple[int, int | None]]:
    return {name: (first, last) for name, (first, last) in lists.items()}


def _readme(case: Case, feeds: bool) -> str:
    lines = [
        f"# {case.what}",
        "",
        f"The check `{case.check.kind}` fails: {case.reason}",
        "",
        "Reproduce it with",
        "",
        f"    graphopt replay .{' --allow-command' if case.check.is_command else ''}",
        "",
        "which exits with status 1 as long as the check fails.",
        "",
        f"- `{_MODEL}`: the model",
    ]
    if feeds:
        lines.append(f"- `{_INPUTS}`: inputs that show the fault")
    if case.check.is_command:
        lines.append(f"- `{_FILES}/`: files named by the command; other files that it needs are missing")
    lines.append(f"- `{CASE}`: passes, options, allowed rewrites, versions")
    if case.lines:
        lines += ["", "Removed (`-`) and added (`+`) nodes, and the nodes around them:", ""]
        lines += [f"    {line}" for line in case.lines]
    if case.command:
        lines += ["", f"It was written by `{shlex.join(case.command)}`."]
    return "\n".join(lines) + "\n"
