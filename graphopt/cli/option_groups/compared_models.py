"""The models that ``bench`` compares: given models, optimized models, and variants of bundles."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options
from graphopt.errors import GraphoptError, UsageError

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.inputs.feeds import InputOptions
    from graphopt.inputs.run_once import Check
    from graphopt.ort.devices import Device
    from graphopt.ort.session_options import SessionChoice
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.timing.bench import Contestant

#: Name of the model that was given, if it is compared with its results.
ORIGINAL = "original"


class ComparedModels:
    """Creates the files of the compared models in a folder.

    Args:
        folder: the folder, empty at first.
        device: the device of the sessions.
        kernels: build kernels for native groups.
        bundles: the loaded bundles among the models, by path.
    """

    def __init__(
        self, run: Run, folder: Path, device: Device, kernels: bool, bundles: Mapping[Path, Bundle]
    ) -> None:
        self._run = run
        self._folder = folder
        self._device, self._kernels, self._bundles = device, kernels, bundles

    def all(self, models: Sequence[Path], against: Sequence[str], python: str) -> list[Contestant]:
        """The models, the original first."""
        if len(models) > 1:
            return [
                self._unchanged_contestant(name, path)
                for name, path in zip(_names(models), models, strict=True)
            ]
        (path,) = models
        original = self._unchanged_contestant(ORIGINAL, path)
        peers = [name for name in dict.fromkeys(against) if name != ORIGINAL]
        found = [original, *self._peers(peers, python, original.path)]
        return [*found, self._optimized_contestant(path)]

    def chosen(
        self, models: Sequence[Path], original: ir.Model, inputs: InputOptions, check: Check | None = None
    ) -> list[Contestant]:
        """The models, and the variants of bundles for the ``inputs`` of ``original``, the first model.

        ``check`` checks these inputs before they are used.
        """
        from graphopt.inputs.run_once import try_out
        from graphopt.specialization.bundle.names import GENERAL_NAME

        feeds = try_out(original, inputs, device=self._device, typical=True, check=check).feeds
        if len(models) == 1:
            bundle = self._bundles[models[0]]
            variants = dict.fromkeys([GENERAL_NAME, bundle.choose(feeds)])
            return [self._variant(name, bundle, name) for name in variants]
        found = []
        for name, path in zip(_names(models), models, strict=True):
            if path in self._bundles:
                variant = self._bundles[path].choose(feeds)
                found.append(self._variant(f"{name} ({variant})", self._bundles[path], variant))
            else:
                found.append(self._unchanged_contestant(name, path))
        return found

    def _variant(self, name: str, bundle: Bundle, variant: str) -> Contestant:
        """A variant of a bundle, with its kernels."""
        from graphopt.timing.bench import Contestant

        choice = bundle.libraries(variant).choice
        return Contestant.of(name, bundle.path(variant), bundle.model(variant), choice)

    def _unchanged_contestant(self, name: str, path: Path) -> Contestant:
        """A model without changes; formats that onnxruntime does not read are written as ONNX."""
        from graphopt import api
        from graphopt.timing.bench import Contestant

        model = api.load_model(path)
        if path.suffix != ".onnx" or self._run.settings.allow_external:
            path = self._folder / f"{len(list(self._folder.iterdir()))}.onnx"
            api.save(model, path, weights="copy")
        return Contestant.of(name, path, model, self._kernel_options_of(model))

    def _optimized_contestant(self, path: Path) -> Contestant:
        from graphopt import api
        from graphopt.timing.bench import Contestant

        compiler = self._run.compiler
        text = compiler.settings.pipeline
        with self._run.console.progress("optimizing"):
            # outputs are compared on the same inputs as latencies
            model, _ = compiler.optimize(path, verify=False, strict=True)
        target = self._folder / "graphopt.onnx"
        api.save(model, target, weights="copy")
        name = f"graphopt -{text}" if text in ("O0", "O1", "O2", "O3") else "graphopt"
        name = "graphopt native" if text == "native" else name
        return Contestant.of(name, target, model, self._kernel_options_of(model))

    def _kernel_options_of(self, model: ir.Model) -> SessionChoice:
        """The session options that ``model`` needs: its kernels."""
        with self._run.console.progress("kernels") as advance:
            return resolve_options.libraries_of(self._run, model, self._device, self._kernels, advance).choice

    def _peers(self, names: Sequence[str], python: str, source: Path) -> Iterator[Contestant]:
        if not names:
            return
        from graphopt.timing import other_optimizers

        try:
            versions = other_optimizers.versions(python)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(
                f"--peer-python: {python} does not run as a Python interpreter",
                hint="name the interpreter of an environment that has the tool: --peer-python ENV/bin/python",
            ) from error
        for name in names:
            if name not in versions:
                raise UsageError(
                    f"{name} is not installed for {python}",
                    hint=f"pip install {name}, or name another interpreter with --peer-python",
                )
            with self._run.console.progress(name):
                yield self._peer(name, python, source)

    def _peer(self, name: str, python: str, source: Path) -> Contestant:
        """The result of another tool for the original; if the tool fails, a contestant with the reason."""
        from graphopt import ir
        from graphopt.process.caller_command import run_caller_command
        from graphopt.timing import other_optimizers
        from graphopt.timing.bench import Contestant

        target = self._folder / name / "model.onnx"
        target.parent.mkdir()
        arguments = [*other_optimizers.command(python, name), str(source.absolute()), str(target)]
        done = run_caller_command(arguments, target.parent)
        if done.returncode or not target.is_file():
            words = (done.stderr.strip() or done.stdout.strip() or "it wrote nothing").splitlines()
            return Contestant(name, target, failure=f"{name} failed: {words[-1].strip()[:200]}")
        model = None
        with contextlib.suppress(GraphoptError):  # graphopt may reject a file that onnxruntime reads
            model = ir.load(target)
        return Contestant.of(name, target, model)


def _names(models: Sequence[Path]) -> list[str]:
    """Names of the models: the file names, or the paths where file names are equal."""
    stems = [path.stem for path in models]
    if len(set(stems)) == len(stems):
        return stems
    names = [str(path) for path in models]
    return (
        [f"{name} ({number})" for number, name in enumerate(names, 1)]
        if len(set(names)) < len(names)
        else names
    )
