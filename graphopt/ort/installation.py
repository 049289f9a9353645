"""The state of the installation: versions, devices, compilers, store and settings, and problems with them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from graphopt import __version__, config, publish
from graphopt.errors import GraphoptError, UsageError
from graphopt.ort.cuda_probe import CudaStatus, probe_cuda
from graphopt.ort.target import Target
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass

#: Required distributions besides onnxruntime.
_LIBRARIES = ("onnx", "onnx-ir", "numpy")
_COMPILERS = ("gcc", "clang")


@dataclass(frozen=True)
class Runtime:
    """The installed onnxruntime.

    Attributes:
        version: its version; empty if it can't be imported.
        packages: the distributions with its files; several distributions overwrite one another's files.
        providers: the execution providers of this build.
        opset, ir_version: the newest versions that it loads; 0 if it loads nothing.
        error: reason if it can't be used.
    """

    version: str
    packages: tuple[str, ...]
    providers: tuple[str, ...] = ()
    opset: int = 0
    ir_version: int = 0
    error: str = ""


@dataclass(frozen=True)
class Folder:
    """The store: its path, the number and bytes of its entries, and the reason if it can't be used."""

    path: str
    entries: int = 0
    bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class Problem:
    """A problem with the installation.

    Attributes:
        what: the problem in one sentence.
        broken: whether graphopt does not work because of the problem.
    """

    what: str
    advice: str
    broken: bool = False


@dataclass(frozen=True)
class Health:
    """The information about the machine for a fault report.

    Attributes:
        versions: versions of graphopt, Python, onnx, onnx-ir and numpy by name; empty if unknown.
        cuda: whether CUDA can be used, and the reason if not.
        opset, ir_version: the newest versions that the installed onnx supports.
        compilers: C compilers by command.
        settings: files and environment variables with settings.
        fault: reason why settings could not be read, so that the defaults apply.
    """

    versions: dict[str, str]
    runtime: Runtime
    cuda: CudaStatus
    opset: int
    ir_version: int
    compilers: dict[str, str]
    store: Folder
    settings: tuple[str, ...]
    fault: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def problems(self) -> list[Problem]:
        """The problems, the worst first."""
        runtime, found = self.runtime, []
        if len(runtime.packages) > 1:
            keep = "onnxruntime-gpu" if "onnxruntime-gpu" in runtime.packages else runtime.packages[0]
            advice = f"pip uninstall -y {' '.join(runtime.packages)}, then pip install {keep}"
            what = f"{' and '.join(runtime.packages)} overwrite each other's files"
            found.append(Problem(what, advice, broken=True))
        if runtime.error:
            advice = "pip install --force-reinstall onnxruntime-gpu, or onnxruntime where that does not exist"
            found.append(Problem(f"onnxruntime can't be used: {runtime.error}", advice, broken=True))
        elif not self.cuda.available:
            on_cpu = "models run on the CPU; --device cpu skips the CUDA check"
            advice = f"{self.cuda.remedy}; otherwise {on_cpu}" if self.cuda.remedy else on_cpu
            found.append(Problem(f"CUDA is off: {self.cuda.reason}", advice))
        if self.fault is not None:
            advice = "fix or remove it, other commands fail because of it; docs/cli.md lists the settings"
            found.append(Problem(f"settings: {self.fault}", advice, broken=True))
        if self.store.error:
            advice = "move the store with --set cache-dir=FOLDER or GRAPHOPT_CACHE_DIR"
            found.append(Problem(f"the store can't be used: {self.store.error}", advice))
        return sorted(found, key=lambda problem: not problem.broken)


def examine(
    settings: config.Settings,
    environ: Mapping[str, str] | None = None,
    fault: UsageError | None = None,
) -> Health:
    """Collect the state of the installation; nothing is printed or changed.

    Args:
        environ: environment variables; the process's own by default.
        fault: the error if the settings could not be read.
    """
    runtime = _runtime()
    opset, ir_version = _onnx_ceilings()
    return Health(
        versions={
            "graphopt": version_of("graphopt"),
            "python": platform.python_version(),
            **{name: version_of(name) for name in _LIBRARIES},
        },
        runtime=runtime,
        cuda=CudaStatus(False, "onnxruntime can't be used") if runtime.error else probe_cuda(),
        opset=opset,
        ir_version=ir_version,
        compilers=_compilers(environ),
        store=_store(settings.cache_dir),
        settings=config.sources(environ) if fault is None else (),
        fault=None if fault is None else fault.message,
    )


def version_of(distribution: str) -> str:
    """The version of an installed distribution; empty if it is not installed.

    The version of graphopt is that of the code: the metadata of an editable installation may be older.
    """
    if distribution == "graphopt":
        return __version__
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _runtime() -> Runtime:
    owners = metadata.packages_distributions().get("onnxruntime", [])
    packages = tuple(sorted(dict.fromkeys(owners)))
    try:
        module = importlib.import_module("onnxruntime")
        version = str(module.__version__)
    except Exception as error:  # a broken installation may raise anything
        return Runtime("", packages, error=" ".join(str(error).split()))
    try:
        target = Target()
        providers = tuple(module.get_available_providers())
        return Runtime(version, packages, providers, target.opset_ceiling, target.ir_ceiling)
    except (GraphoptError, AttributeError) as error:
        return Runtime(version, packages, error=" ".join(str(error).split()))


def _onnx_ceilings() -> tuple[int, int]:
    """The newest opset and IR version that the installed onnx supports."""
    import onnx

    return int(onnx.defs.onnx_opset_version()), int(onnx.IR_VERSION)


def _compilers(environ: Mapping[str, str] | None) -> dict[str, str]:
    """Installed C compilers by command: their files or modules."""
    commands = [command for command in (config.variable("CC", environ), *_COMPILERS) if command]
    found = {}
    for command in commands:
        file = shutil.which(command.split()[0])
        if file is not None:
            found[command] = file
    if importlib.util.find_spec("ziglang") is not None:
        found["python -m ziglang cc"] = f"ziglang {version_of('ziglang')}".strip()
    return found


def _store(root: Path) -> Folder:
    try:
        if root.exists() and not root.is_dir():
            return Folder(str(root), error=f"{root} is not a folder")
        existing = publish.nearest_existing(root)
        if not os.access(existing, os.W_OK | os.X_OK):
            return Folder(str(root), error=f"{existing} can't be written")
        entries = list(Store(root).entries())
    except OSError as error:
        return Folder(str(root), error=str(error))
    return Folder(str(root), len(entries), sum(entry.bytes for entry in entries))
