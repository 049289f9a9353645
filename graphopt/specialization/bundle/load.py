"""A bundle that was loaded: it picks the variant that inputs are for, and runs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import config, ir
from graphopt.errors import ResourceLimit, RuntimeFailure, UsageError, unknown
from graphopt.ir.signature import Signature
from graphopt.ort import preflight
from graphopt.ort.devices import Device, choose_device
from graphopt.ort.session import Optimizations
from graphopt.ort.session_options import SessionChoice, recommended_by
from graphopt.specialization.bundle.files import BundleFiles
from graphopt.specialization.bundle.plan import PLAN, folder_of
from graphopt.specialization.bundle.prepacked import prepacked
from graphopt.specialization.dispatch import compile_guards
from graphopt.specialization.session import VariantSession, check_signature
from graphopt.util.element_types import native_feeds
from graphopt.util.store import Store

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Bundle:
    """A model and its variants in a folder; each run takes the first whose guard lets its inputs through.

    A session is made when its variant first runs. Several threads may run a bundle at once.

    >>> bundle = graphopt.load("model.bundle")                              # doctest: +SKIP
    >>> bundle.run({"ids": np.zeros((1, 128), np.int64)})                   # doctest: +SKIP
    >>> bundle.choose({"ids": np.zeros((3, 7), np.int64)})                  # doctest: +SKIP
    'general'

    Args:
        path: of the folder, or of the plan in it.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; by default what the settings say.
        threads: inside one operator; by default onnxruntime's choice.
        optimizations: onnxruntime's own, ``default`` or ``off``.
        session_options: use those that the model's metadata recommends for the device.
        prepack: keep weights in the store as onnxruntime packs them on this machine, and map them from there.
        check: compare each file with its size and SHA-256 in the plan before it is used for the first time,
            which takes about a second for 1 to 2 GB. Without, damage goes unnoticed.

    If the folder is replaced by another bundle, or removed, the loaded one keeps its own files, which
    it holds open.

    Attributes:
        folder: where it lies.
        plan: what it consists of.
        remarks: variants whose weights could not be kept packed, and why; they run as if not asked for.

    Raises:
        UsageError: there is no bundle.
        InvalidModel: its plan is damaged, or a file is missing.
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
    ) -> None:
        found = folder_of(Path(path))
        if found is None:
            raise UsageError(f"{path} is no bundle: it has no {PLAN}")
        self.folder = found
        self._files = BundleFiles(found, check=check)
        self.plan = self._files.plan
        self._settings = config.current()  # those of this thread, whichever makes sessions
        self._asked = device
        self._threads = threads
        self._optimizations: Optimizations = optimizations
        self._heeds_options = session_options
        self._prepacks, self._checks = prepack, check
        self.remarks: list[str] = []
        self._names = list(self.plan.models)
        self._dispatch = compile_guards([variant.guard for variant in self.plan.variants])
        self._ready: list[VariantSession | None] = [None] * len(self._names)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Sessions are not pickled, but made anew when they are needed."""
        arguments: dict[str, Any] = {
            "device": self._asked,
            "threads": self._threads,
            "optimizations": self._optimizations,
            "session_options": self._heeds_options,
            "prepack": self._prepacks,
            "check": self._checks,
        }
        return partial(Bundle, **arguments), (self.folder.absolute(),)

    @property
    def names(self) -> list[str]:
        """The names of the variants in the order in which their guards are asked, ``general`` last."""
        return list(self._names)

    @property
    def signature(self) -> Signature:
        """How it is called."""
        return self.plan.signature

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in the model's order, of the variant that :meth:`choose` tells.

        Args:
            feeds: as for :func:`graphopt.run`.

        Raises:
            UsageError: an input is missing or unknown, or holds neither numbers nor strings.
            InvalidModel: the file of the variant is damaged.
            RuntimeFailure: onnxruntime can't load or run the variant, or the device can't be used.
        """
        feeds = native_feeds(feeds)
        number = self._dispatch(feeds)
        ready = self._ready[number] or self._made(number)
        return dict(zip(ready.outputs, ready.run(feeds), strict=True))

    def choose(self, feeds: Mapping[str, Any]) -> str:
        """The name of the variant that runs for ``feeds``."""
        return self._names[self._dispatch(native_feeds(feeds))]

    def explain(self, feeds: Mapping[str, Any]) -> dict[str, list[str]]:
        """For each variant, in what ``feeds`` differ from what its guard asks for; nothing if it holds."""
        feeds = native_feeds(feeds)
        return {variant.name: variant.guard.explain(feeds) for variant in self.plan.variants}

    def session(self, name: str) -> InferenceSession:
        """The session of a variant, made if need be.

        Raises:
            UsageError: no variant bears the name.
            InvalidModel: its file is damaged, or is a model of another signature than the plan says.
            RuntimeFailure: onnxruntime can't load it, or the device can't be used.
        """
        number = self._number(name)
        return (self._ready[number] or self._made(number)).session

    def model(self, name: str) -> ir.Model:
        """The model of a variant, loaded anew.

        Raises:
            UsageError: no variant bears the name.
            InvalidModel: its file is damaged, or is a model of another signature than the plan says.
        """
        found = self._files.use(self._file(name), ir.load)
        check_signature(name, Signature.of(found), self.signature)
        return found

    def path(self, name: str) -> Path:
        """The file of a variant; raises UsageError if none bears the name."""
        return self._files.use(self._file(name), lambda path: path)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file but the plan."""
        return self._files.sizes

    def check(self) -> bool:
        """Compare all files with their sizes and SHA-256 in the plan; whether the plan has those of all.

        Bundles of older versions of graphopt have only that of the weights.

        Raises:
            InvalidModel: one differs.
        """
        self._files.check(*self.plan.files)
        return self._checks and all(name in self.plan.sums for name in self.plan.files)

    def _file(self, name: str) -> str:
        self._number(name)
        return self.plan.models[name]

    @cached_property
    def device(self) -> Device:
        """Where it runs; raises RuntimeFailure if that can't be used."""
        return choose_device(self._asked, self._settings)[0]

    def _number(self, name: str) -> int:
        if name not in self._names:
            raise unknown("variant", name, self._names)
        return self._names.index(name)

    def _made(self, number: int) -> VariantSession:
        """The session number ``number``, made by whichever thread comes first."""
        with self._lock:
            ready = self._ready[number]
            if ready is None:
                ready = self._ready[number] = self._make(self._names[number])
            return ready

    def _make(self, name: str) -> VariantSession:
        text = self.plan.session_options if self._heeds_options else None
        choice = recommended_by(text, self.device)
        if choice.remark is not None and choice.remark not in self.remarks:
            self.remarks.append(choice.remark)
        try:
            made = self._packed(name, choice)
            if made is None:
                made = self._files.use(
                    self._file(name), lambda path: self._created(path, self._optimizations, choice)
                )
        except RuntimeFailure as failure:
            raise RuntimeFailure(
                f"{name} of {self.folder}: {failure.message}", hint=failure.hint
            ) from failure
        check_signature(name, Signature.of_session(made), self.signature)
        return VariantSession(made, self.signature)

    def _packed(self, name: str, choice: SessionChoice) -> InferenceSession | None:
        """A session whose weights the store has packed; ``None`` if that is not wanted, or not possible."""
        if not self._prepacks or self.device.kind != "cpu" or self._optimizations != "default":
            return None
        store = Store(self._settings.cache_dir)
        try:
            weights = self._files.weights_key()
            packed = self._files.use(
                self._file(name), lambda path: prepacked(path, weights, choice, store, check=self._checks)
            )
            return self._created(packed, "off", choice)
        except (ResourceLimit, RuntimeFailure) as failure:
            self.remarks.append(f"{name}: {failure.message}")
            return None

    def _created(self, path: Path, level: Optimizations, choice: SessionChoice) -> InferenceSession:
        return preflight.create(
            path,
            optimizations=level,
            device=self.device,
            threads=self._threads,
            choice=choice,
            store=Store(self._settings.cache_dir),
        )
