"""A loaded bundle, which selects a variant for given inputs and runs it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from graphopt import config, ir
from graphopt.device_hints.bf16 import naming_bf16
from graphopt.device_hints.model_hints import record_hints
from graphopt.diagnostics import tracer
from graphopt.diagnostics.record import Record
from graphopt.diagnostics.tracer import Tracer
from graphopt.errors import ResourceLimit, RuntimeFailure, UsageError, unknown
from graphopt.fusion.kernel_library import Libraries, Toolchain
from graphopt.inputs.run_once import check_feeds
from graphopt.ir.signature import Signature
from graphopt.ort import preflight
from graphopt.ort.devices import Device
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice, recommended_by
from graphopt.specialization.bundle.check_target import (
    check_kernels,
    device_for,
    is_older_runtime,
    with_remedy,
)
from graphopt.specialization.bundle.file_snapshot import BundleFiles
from graphopt.specialization.bundle.kernel_files import own_libraries
from graphopt.specialization.bundle.manifest import Manifest
from graphopt.specialization.bundle.names import GENERAL_NAME, MANIFEST, bundle_at
from graphopt.specialization.bundle.optimized_file import optimized_file
from graphopt.specialization.bundle.prepacked_weights import prepacked
from graphopt.specialization.compiled_guards import compile_guards
from graphopt.specialization.ort_values import bound_values
from graphopt.specialization.run_features import RunFeatureOptions, RunFeatures
from graphopt.specialization.shared_buffer_checks import BufferChecks, names_in
from graphopt.specialization.variant_session import VariantSession, check_signature
from graphopt.util.cuda_options import parse_cuda_options
from graphopt.util.disk_store import Store
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.ort_array_conversion import native_feeds

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue


class Bundle:
    """A model and its variants in a folder or zip file; each run uses the first variant whose guard holds.

    A session is created when its variant first runs. Thread-safe.

    >>> bundle = graphopt.load("model.gopt")                                # doctest: +SKIP
    >>> bundle.run({"ids": np.zeros((1, 128), np.int64)})                   # doctest: +SKIP
    >>> bundle.choose({"ids": np.zeros((3, 7), np.int64)})                  # doctest: +SKIP
    'general'

    Args:
        path: the folder, the manifest in it, or the zip file.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; by default that of the settings. ``auto`` is the
            device for which the bundle was written.
        threads: threads within an operator; by default onnxruntime's choice.
        optimizations: onnxruntime's optimization level, ``default`` or ``off``.
        session_options: apply the session options that the model's metadata recommends for the device.
        prepack: cache the weights that onnxruntime packs for this machine in the store, and map them from the
            store.
        check: compare the size and the SHA-256 of each file with the manifest, at about 1 to 2 GB per second.
            Otherwise damage is not detected.
        trusted: load the bundle's own library of kernels, which is code. By default, kernels are built from
            their definitions in the models, or loaded from the store.
        kernels: run native groups by kernels; otherwise, onnxruntime runs their nodes.
        check_target: check that the bundle's target fits this machine. Otherwise, a mismatch is an error of
            the session that it affects.
        cuda_options: options of onnxruntime's CUDA provider (docs/settings.md), which override those of the
            settings.
        features: CUDA graphs and checks of inputs (:class:`.RunFeatures`).

    The files are kept open: a loaded bundle is not affected if the folder is replaced or removed.

    Attributes:
        folder: its folder, or its zip file.
        manifest: its contents.
        record: hints about the device and the inputs, and counters.
        remarks: the reasons why variants run without cached weights or without native kernels.

    Raises:
        UsageError: the bundle does not exist, or an option is invalid.
        InvalidModel: the manifest is damaged, or a file is missing or damaged.
        UnsupportedModel: the bundle is for another device, or has kernels for another system, architecture or
            CPU level.
        RuntimeFailure: the device can't be used, or an older onnxruntime can't load the general model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | Device | None = None,
        threads: int | None = None,
        optimizations: Optimizations = "default",
        session_options: bool = True,
        prepack: bool = False,
        check: bool = True,
        trusted: bool = False,
        kernels: bool = True,
        check_target: bool = True,
        cuda_options: Mapping[str, str | int | bool] | Iterable[str] = (),
        **features: Unpack[RunFeatureOptions],
    ) -> None:
        found = bundle_at(Path(path))
        if found is None:
            raise UsageError(
                f"{path} is not a bundle: it has no {MANIFEST}",
                hint="graphopt compile MODEL writes a bundle",
            )
        self.folder = found
        self._files = BundleFiles(found, check=check)
        self.manifest = self._files.manifest
        self._settings = config.current()  # sessions may be created by another thread, with other settings
        self._device = device
        self._cuda_options = parse_cuda_options(cuda_options)
        self._threads = threads
        self._optimizations: Optimizations = optimizations
        self._use_session_options = session_options
        self._prepacks, self._checks = prepack, check
        self._trusted, self._kernels, self._checks_target = trusted, kernels, check_target
        self.remarks: list[str] = []
        self._features, self.record = features, Record()
        chosen = RunFeatures(**features)
        self._graphs, self._size_checks = chosen.switch(self.record), chosen.checks(self.signature)
        self._names = list(self.manifest.models)
        self._dispatch = compile_guards([variant.guard for variant in self.manifest.variants])
        self._ready: list[VariantSession | None] = [None] * len(self._names)
        self._lock = ForkSafeLock()
        if check_target and self.manifest.target is not None:
            assert self.device.kind  # first, because the errors about the device name the remedy
            check_kernels(self.manifest.target)
            if is_older_runtime(self.manifest.target):
                self.session(GENERAL_NAME)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its sessions, which are created on demand."""
        arguments: dict[str, Any] = {
            "device": self._device,
            "threads": self._threads,
            "optimizations": self._optimizations,
            "session_options": self._use_session_options,
            "prepack": self._prepacks,
            "check": self._checks,
            "trusted": self._trusted,
            "kernels": self._kernels,
            "check_target": self._checks_target,
            "cuda_options": self._cuda_options,
            **self._features,
        }
        return partial(Bundle, **arguments), (self.folder.absolute(),)

    @property
    def names(self) -> list[str]:
        """The names of the variants in the order in which their guards are checked, ``general`` last."""
        return list(self._names)

    @property
    def plan(self) -> Manifest:
        """The former name of :attr:`manifest`, which is removed in 0.3."""
        import warnings

        message = "Bundle.plan is called Bundle.manifest since version 0.2"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.manifest

    @property
    def signature(self) -> Signature:
        """The inputs and outputs."""
        return self.manifest.signature

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the variant that :meth:`choose` selects; returns the outputs by name, in the model's order.

        Args:
            feeds: as for :func:`graphopt.run`.

        Raises:
            UsageError: an input is missing or unknown, has another element type, or contains neither numbers
                nor strings.
            InvalidModel: the file of the variant is damaged.
            RuntimeFailure: onnxruntime can't load or run the variant, or the device can't be used.
        """
        feeds = native_feeds(feeds)
        if self._size_checks is not None:
            self._size_checks.check(feeds)
        number = self._dispatch(feeds)
        ready = self._ready[number] or self._session(number)
        try:
            return dict(zip(ready.outputs, ready.run(feeds), strict=True))
        except RuntimeFailure:
            from graphopt.inputs.run_once import check_dtypes

            check_dtypes(feeds, self.signature)
            raise

    def run_bound(
        self, values: Mapping[str, OrtValue], *, share: Mapping[str, str] | None = None
    ) -> dict[str, OrtValue]:
        """Run the variant for values of onnxruntime; returns the outputs by name, on the bundle's device.

        Concurrent runs must not use the values that ``share`` overwrites.

        Args:
            values: the inputs.
            share: by name of an output, the input that the output overwrites, as for
                :meth:`graphopt.Executor.run_bound`; a variant in which this is not safe is skipped.

        Raises:
            UsageError: a value is not an OrtValue, ``share`` names a missing input or output, or a shared
                output differs in shape or type from its input or has a shape unknown before the run.
            VerificationFailed: an output may overwrite elements before they are read.
            InvalidModel, RuntimeFailure: as for :meth:`run`.
        """
        share = names_in(share, self.signature)
        if self._size_checks is not None:
            self._size_checks.check(values)
        number = self._dispatch(bound_values(values))
        ready = self._ready[number] or self._session(number)
        if not ready.buffers.are_safe(share):
            ready = self._session(len(self._names) - 1)
        return ready.run_bound(values, self.device, ready.buffers.for_run(share, values))

    def choose(self, feeds: Mapping[str, Any]) -> str:
        """The name of the variant that runs for ``feeds``.

        Raises:
            UsageError: an input is missing or unknown.
        """
        feeds = native_feeds(feeds)
        check_feeds(feeds, self.signature)
        return self._names[self._dispatch(feeds)]

    def explain(self, feeds: Mapping[str, Any]) -> dict[str, list[str]]:
        """The violated assumptions of each variant for ``feeds``; empty if its guard holds.

        Raises:
            UsageError: an input is missing or unknown.
        """
        feeds = native_feeds(feeds)
        check_feeds(feeds, self.signature)
        return {variant.name: variant.guard.explain(feeds) for variant in self.manifest.variants}

    def session(self, name: str) -> InferenceSession:
        """The session of a variant, created on first use.

        Raises:
            UsageError: the variant does not exist.
            InvalidModel: the file of the variant is damaged, or its signature is not that of the manifest.
            RuntimeFailure: onnxruntime can't load the variant, or the device can't be used.
        """
        number = self._number(name)
        return (self._ready[number] or self._session(number)).session

    def model(self, name: str) -> ir.Model:
        """The model of a variant, loaded from its file.

        Raises:
            UsageError: the variant does not exist.
            InvalidModel: the file of the variant is damaged, or its signature is not that of the manifest.
        """
        found = self._files.use(self._file(name), ir.load)
        check_signature(name, Signature.of(found), self.signature)
        return found

    def libraries(self, name: str) -> Libraries:
        """The libraries of native kernels of a variant: the bundle's own if it is trusted, otherwise built.

        Raises:
            UsageError: the variant does not exist.
            InvalidModel: a file is damaged.
        """
        file = self._file(name)
        if name not in self.manifest.native or not self._kernels:
            return Libraries()
        if not self._trusted or not self.manifest.kernels:
            return Toolchain(self._settings, self.device).libraries(self._files.use(file, ir.load))
        return own_libraries(self.manifest, self._files, self.device, self._settings.cpu_level)

    def path(self, name: str) -> Path:
        """The file of a variant; raises UsageError if the variant does not exist."""
        return self._files.use(self._file(name), lambda path: path)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file except the manifest, in bytes."""
        return self._files.sizes

    def check(self) -> bool:
        """Compare all files with the manifest's checksums; returns whether all files have a checksum.

        Bundles of format version 1 have a checksum of the weights only.

        Raises:
            InvalidModel: a file differs.
        """
        self._files.check(*self.manifest.files)
        return self._checks and all(name in self.manifest.sums for name in self.manifest.files)

    def _file(self, name: str) -> str:
        self._number(name)
        return self.manifest.models[name]

    @cached_property
    def device(self) -> Device:
        """The device.

        Raises:
            UnsupportedModel: the bundle is for another device.
            RuntimeFailure: the device can't be used.
        """
        device, remark = device_for(self.manifest, self._device, self._settings)
        if remark is not None and self.manifest.target is not None:
            self.remarks.append(remark)
        return device.having(self._cuda_options).having(self._settings.cuda_options)

    def _number(self, name: str) -> int:
        if name not in self._names:
            raise unknown("variant", name, self._names)
        return self._names.index(name)

    def _session(self, number: int) -> VariantSession:
        """The session with this index, created once."""
        with self._lock:
            ready = self._ready[number]
            if ready is None:
                with tracer.tracing(Tracer.of(self._settings)):
                    ready = self._ready[number] = self._create(self._names[number])
            return ready

    def _create(self, name: str) -> VariantSession:
        choice, file = self._choice(name), self._file(name)
        model = partial(self._files.use, file, ir.load)

        def create(options: Mapping[str, str]) -> InferenceSession:
            return self._files.use(
                file, lambda path: self._create_session(path, self._optimizations, choice, options)
            )

        try:
            session, graphs = self._prepacked(name, choice), None
            if session is None:
                with naming_bf16(model, self.device):
                    record_hints(self.record, model, self.device)
                    session, graphs = self._graphs.session(create, model, self.device)
        except RuntimeFailure as failure:
            text = f"{name} of {self.folder}: {failure.message}"
            raise with_remedy(RuntimeFailure(text, hint=failure.hint), self.manifest.target) from failure
        check_signature(name, Signature.of_session(session), self.signature)
        # must not refer to the bundle, which owns the session
        graph = partial(optimized_file, self._files, file, self._optimizations, self.device, choice)
        checks = BufferChecks(model, graph, session)
        return VariantSession(session, self.signature, checks, graphs=graphs, record=self.record)

    def _choice(self, name: str) -> SessionChoice:
        """The recommended session options, and the native kernels of the variant."""
        text = self.manifest.session_options_of(name) if self._use_session_options else None
        choice = recommended_by(text, self.device)
        remarks = [] if choice.remark is None else [choice.remark]
        libraries = self.libraries(name)
        choice |= libraries.choice
        remarks += [f"{name}: {remark}" for remark in libraries.remarks]
        self.remarks += [remark for remark in remarks if remark not in self.remarks]
        return choice

    def _prepacked(self, name: str, choice: SessionChoice) -> InferenceSession | None:
        """A session with packed weights from the store; ``None`` if this is disabled or impossible."""
        if not self._prepacks or not self.device.capabilities.is_host or self._optimizations != "default":
            return None
        store = Store(self._settings.cache_dir)
        try:
            weights = self._files.weights_key()
            packed = self._files.use(
                self._file(name), lambda path: prepacked(path, weights, choice, store, check=self._checks)
            )
            return self._create_session(packed, "off", choice)
        except (ResourceLimit, RuntimeFailure) as failure:
            self.remarks.append(f"{name}: {failure.message}")
            return None

    def _create_session(
        self,
        path: Path,
        level: Optimizations,
        choice: SessionChoice,
        options: Mapping[str, str] | None = None,
    ) -> InferenceSession:
        common: dict[str, Any] = {"device": self.device, "threads": self._threads, "choice": choice}
        store = Store(self._settings.cache_dir)
        return preflight.create(path, optimizations=level, store=store, provider_options=options, **common)
