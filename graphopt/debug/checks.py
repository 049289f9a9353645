"""Checks of a result; each returns the failure, or ``None``.

==========  ================================================================================
numerics    the result, with or without native kernels, computes something else, or has another interface,
            according to the verifier
valid       its structure is invalid, its interface changed, or onnxruntime can't load it
crash       a pass or onnxruntime fails or crashes; everything runs in a child process
size        it has more weights or nodes than the original
work        it has more operations or moves more bytes than the original (counted, not timed)
a command   the command, in which ``{model}`` is replaced by the model's file, exits with a status other than
0
==========  ================================================================================

An exception of a pass fails every check.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

from graphopt import config, ir, publish
from graphopt.analysis.cost import Cost
from graphopt.analysis.symbolic import Dim, typical_size
from graphopt.context import context_for
from graphopt.debug.command_checks import CommandNotRun, check_ran, shell_symbol
from graphopt.errors import GraphoptError, InvalidModel, SystemExhausted, UsageError
from graphopt.fusion.kernel_library import libraries_for
from graphopt.inputs.feeds import Feeds, InputOptions
from graphopt.instrument.model_summary import Summary
from graphopt.ir.signature import Signature, diff
from graphopt.model_arguments import copy
from graphopt.numerics import Numerics
from graphopt.optimization_attempt import is_heavy
from graphopt.ort.devices import CPU, Device
from graphopt.process.caller_command import run_caller_command
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.guarded_groups import verify_with_groups
from graphopt.verification.verdict import Row
from graphopt.verification.verifier import Verifier

KINDS = ("numerics", "valid", "crash", "size", "work")
#: Default factor by which a result may grow before ``size`` or ``work`` fails.
GROWTH = 1.1
#: Growth in bytes, nodes or operations that is always allowed.
_LEEWAY = {"weight bytes": 4096, "nodes": 4, "operations": 1000, "bytes moved": 1000}


class Check(Protocol):
    """A check of a model."""

    def __call__(self, model: ir.Model) -> str | None:
        """The failure of ``model``; ``None`` if it passes."""

    def feeds(self) -> Feeds | None:
        """Inputs that showed the latest failure, if any."""

    def scope(self) -> str:
        """The inputs of the latest comparison, as text; empty if nothing runs."""


@dataclass(frozen=True)
class CheckOptions:
    """Options of a check.

    Attributes:
        kind: one of :data:`KINDS`, or a command.
        numerics: numerics class, which sets the tolerance.
        growth: factor by which a result may be larger than the original.
        seconds: limit on the seconds of one comparison, or of a command.
        memory: limit on the bytes of memory of risky runs; ``None`` for no limit.
        folder: folder in which a command runs; the current folder if ``None``.
    """

    kind: str = "numerics"
    numerics: Numerics = Numerics.REASSOCIATES
    inputs: InputOptions = field(default_factory=InputOptions)
    device: Device = CPU
    growth: float = GROWTH
    seconds: float = 10.0
    memory: int | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.is_command:
            return
        if "\0" in self.kind:
            raise UsageError("--check contains a NUL character")
        try:
            words = shlex.split(self.kind)
        except ValueError as error:
            raise UsageError(f"--check {self.kind!r} is not a command: {error}") from error
        symbol = shell_symbol(self.kind)
        if symbol is not None:
            raise UsageError(
                f"--check runs without a shell, so {symbol!r} has no effect",
                hint="quote it, or run a shell: --check \"sh -c 'test -s $0 && python check.py $0' {model}\"",
            )
        if not any("{model}" in word for word in words):
            kinds = ", ".join(KINDS)
            raise UsageError(
                f"--check {self.kind!r} is none of {kinds}, and not a command with {{model}}",
                hint="give a command such as --check 'python check.py {model}'",
            )

    @property
    def promise(self) -> str:
        """The property of a good result, as a clause."""
        limit = f"stay below {self.growth:g} times those of the original"
        known = {
            "numerics": "interface and outputs agree with the original",
            "valid": "the model is valid, its interface is unchanged, and onnxruntime loads it",
            "crash": "neither a pass nor onnxruntime fails",
            "size": f"weight bytes and nodes {limit}",
            "work": f"operations and moved bytes {limit}",
        }
        return known.get(self.kind, f"the command exits with status 0: {self.kind}")

    @property
    def is_command(self) -> bool:
        """Whether the check is a command."""
        return self.kind not in KINDS


@checked
@contextlib.contextmanager
def make_check(options: CheckOptions, original: ir.Model, *, empty: bool = True) -> Iterator[Check]:
    """The check of results of ``original``.

    Args:
        empty: whether ``numerics`` also tries dims of size 0.

    Raises:
        UsageError: the options do not fit the model.
    """
    match options.kind:
        case "numerics" | "crash":
            limit = options.memory
            verifier = Verifier(
                original,
                options=options.inputs,
                device=options.device,
                seconds=options.seconds,
                empty=empty,
                isolate=options.kind == "crash" or (limit is not None and is_heavy(original, limit)),
                memory=limit,
                cpu_level=config.current().cpu_level,
            )
            with verifier:
                yield NumericsCheck(
                    verifier,
                    options.numerics,
                    crashes_only=options.kind == "crash",
                    libraries=lambda model: libraries_for(model, config.current(), options.device).paths,
                )
        case "valid":
            yield ValidCheck(original, options.device)
        case "size":
            yield GrowthCheck(original, options.growth, size_of)
        case "work":
            yield GrowthCheck(original, options.growth, work_of)
        case _:
            yield CommandCheck(options.kind, options.seconds, options.folder)


class NumericsCheck:
    """The verifier's verdict; after a failed comparison, later calls repeat only that comparison.

    Args:
        numerics: numerics class, which sets the tolerance.
        crashes_only: accept any model that runs, regardless of its results.
        libraries: returns the operator libraries of a model, which is compared with and without them.
        failed: a comparison known to fail; only this comparison is run.
    """

    def __init__(
        self,
        verifier: Verifier,
        numerics: Numerics,
        *,
        crashes_only: bool = False,
        libraries: Callable[[ir.Model], Sequence[str]] | None = None,
        failed: Row | None = None,
    ) -> None:
        self._verifier, self._numerics, self._crashes_only = verifier, numerics, crashes_only
        self._libraries = libraries or (lambda model: ())
        self._failed = failed
        self._scope = ""

    def __call__(self, model: ir.Model) -> str | None:
        signature = not self._crashes_only
        try:
            verdict = verify_with_groups(
                self._verifier,
                model,
                numerics=self._numerics,
                signature=signature,
                like=self._failed,
                libraries=self._libraries(model),
            )
            self._scope = f"compared on {verdict.scope}"
        except InvalidModel as error:
            return error.message
        except GraphoptError:  # the original is at fault
            raise
        except Exception as error:  # writing an invalid model may raise any exception
            return f"the result can't be written: {type(error).__name__}: {error}"
        failures = [row for row in verdict.failures if not self._crashes_only or not row.output]
        if verdict.ok or (self._crashes_only and not failures):
            return None
        if failures:
            self._failed = failures[0]
        return failures[0].reason if self._crashes_only else verdict.summary()

    @property
    def refusal(self) -> str | None:
        """The reason why nothing can be compared: the original does not run."""
        return self._verifier.refusal

    def feeds(self) -> Feeds | None:
        return None if self._failed is None else self._verifier.feeds(self._failed)

    def scope(self) -> str:
        return self._scope


class _WithoutFeeds:
    def feeds(self) -> Feeds | None:
        return None

    def scope(self) -> str:
        return ""


class ValidCheck(_WithoutFeeds):
    """Structure, interface, and, if a device is given, whether onnxruntime can load the model."""

    def __init__(self, original: ir.Model, device: Device | None = None) -> None:
        self._signature, self._device = Signature.of(original), device

    def __call__(self, model: ir.Model) -> str | None:
        from graphopt.ort.session import create

        fault = ir.find_fault(model)
        if fault is not None:
            return fault.sentence
        changes = diff(self._signature, Signature.of(model))
        if changes or self._device is None:
            return str(changes[0]) if changes else None
        try:
            with model_file(model) as path:
                create(path, optimizations="off", device=self._device)
        except SystemExhausted:  # the model is not at fault
            raise
        except GraphoptError as error:
            return error.message
        return None


class GrowthCheck(_WithoutFeeds):
    """Whether counted quantities grew."""

    def __init__(
        self, original: ir.Model, growth: float, count: Callable[[ir.Model], Mapping[str, float]]
    ) -> None:
        self._growth, self._count, self._before = growth, count, count(original)

    def __call__(self, model: ir.Model) -> str | None:
        after = self._count(model)
        for quantity, old in self._before.items():
            new = after[quantity]
            if new > self._growth * old + _LEEWAY[quantity]:
                return f"{old:,.0f} {quantity} became {new:,.0f}"
        return None


def size_of(model: ir.Model) -> dict[str, float]:
    """Number of bytes of weights, and number of nodes."""
    summary = Summary.of(model)
    return {"weight bytes": summary.weight_bytes, "nodes": summary.nodes + summary.function_nodes}


def work_of(model: ir.Model) -> dict[str, float]:
    """Operations and bytes moved, with dynamic dims of size 16, by :mod:`graphopt.analysis.cost`."""
    other = copy(model)
    with context_for(other) as cx:
        cost = Cost.of(other.graph, cx.facts)
    return {"operations": _number(cost.flops), "bytes moved": _number(cost.bytes)}


def _number(dim: Dim) -> float:
    number = typical_size(dim)
    return math.inf if number is None else float(number)


class CommandCheck(_WithoutFeeds):
    """A command that exits with status 0 if the model is good.

    Raises, when called:
        CommandNotRun: the command could not run.
    """

    def __init__(self, command: str, seconds: float, folder: Path | None = None) -> None:
        self._words, self._seconds = shlex.split(command), max(seconds, 60.0)
        self._folder = Path.cwd() if folder is None else folder.absolute()

    def __call__(self, model: ir.Model) -> str | None:
        try:
            with model_file(model) as path:
                words = [word.replace("{model}", str(path)) for word in self._words]
                done = run_caller_command(words, self._folder, self._seconds)
        except subprocess.TimeoutExpired:
            return f"the command took more than {self._seconds:g} s"
        except OSError as error:
            raise CommandNotRun(f"can't run {self._words[0]}: {error.strerror or error}") from error
        except InvalidModel as error:
            return error.message
        if done.returncode == 0:
            return None
        text = done.stderr or done.stdout
        words = [word for word in self._words if "{model}" not in word]
        check_ran(words, self._folder, done.returncode, text)
        lines = text.strip().splitlines()
        last = f": {lines[-1][:200]}" if lines else ""
        return f"the command ended with status {done.returncode}{last}"


@contextlib.contextmanager
def model_file(model: ir.Model) -> Iterator[Path]:
    """``model`` in a file that is removed afterwards."""
    with publish.ScratchFolder() as folder:
        path = folder / "model.onnx"
        ir.save(model, path)
        yield path
