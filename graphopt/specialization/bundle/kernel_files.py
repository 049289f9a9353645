"""The libraries of kernels of a bundle: their names, and their place in the manifest."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from graphopt.fusion.kernel_library import Libraries
from graphopt.ort.devices import CPU, Device
from graphopt.specialization.bundle.file_snapshot import BundleFiles
from graphopt.specialization.bundle.manifest import KernelFile, Manifest
from graphopt.util.lazy_dataclass import dataclass

#: x86-64 levels of kernels, by the names of psABI levels.
LEVELS = {"v2": 2, "v3": 3, "v4": 4}
#: Other names of architectures.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def machine() -> str:
    """The architecture of this machine, such as ``x86_64`` or ``aarch64``."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def system() -> str:
    """The operating system: ``linux``, ``darwin`` or ``win32``."""
    return sys.platform


@dataclass(frozen=True)
class BundleKernels:
    """The kernels of all native groups of a bundle, in one library for this machine.

    Attributes:
        library: the library; ``None`` without kernels.
        device: the kind of device of the kernels.
        levels: the x86-64 levels in the library; empty on other architectures.
    """

    library: Path | None = None
    device: str = "cpu"
    levels: tuple[int, ...] = ()

    @property
    def cpu_level(self) -> int | None:
        """The lowest x86-64 level with kernels."""
        return min(self.levels, default=None) if self.library is not None else None

    @property
    def system(self) -> str | None:
        """The operating system that loads the library."""
        return None if self.library is None else system()

    @property
    def machine(self) -> str | None:
        """The architecture that runs the library."""
        return None if self.library is None else machine()

    @property
    def files(self) -> dict[str, Path]:
        """The libraries to copy, by file name in the bundle."""
        if self.library is None:
            return {}
        device = "" if self.device == CPU.kind else f"{self.device}-"
        level = "" if self.cpu_level is None else f"-v{self.cpu_level}"
        return {f"kernels-{device}{machine().replace('_', '-')}{level}{self.library.suffix}": self.library}

    @property
    def entries(self) -> tuple[KernelFile, ...]:
        """The entries of the manifest."""
        return tuple(KernelFile(name, self.device, machine(), self.cpu_level) for name in self.files)


def own_libraries(manifest: Manifest, files: BundleFiles, device: Device, cpu_level: int | None) -> Libraries:
    """The libraries in a bundle for ``device``, which are code: for trusted bundles only.

    On the CPU, these include libraries for other devices: they also contain the kernels for CPUs.
    """
    is_host = device.capabilities.is_host
    own = [library.file for library in manifest.kernels if is_host or library.device == device.kind]
    paths = tuple(str(files.use(file, lambda path: path.absolute())) for file in own)
    return Libraries(paths, cpu_level=cpu_level)
