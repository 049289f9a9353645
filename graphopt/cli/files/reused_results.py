"""The use of the result cache by ``optimize``: the key of each result, its lookup, delivery and storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import publish
from graphopt.cli.files.optimize_files import STDOUT
from graphopt.optimize_options import OptimizeOptions
from graphopt.result_cache.cache import ResultCache, trace_bypass, why_not_stored
from graphopt.result_cache.entry_models import load_entry, refers_to_original, save_entry
from graphopt.result_cache.key import Key, result_key
from graphopt.result_cache.model_files import ModelFiles
from graphopt.result_cache.not_cached import NotCached
from graphopt.result_cache.stored_result import MODEL, StoredResult, write_report
from graphopt.settings import Settings
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.weight_placement import WeightPlacement

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.instrument.report import Report


def key_of_file(
    source: Path, files: ModelFiles, form: str, settings: Settings, options: OptimizeOptions
) -> Key:
    """The key of the result for the model in ``source``; other arguments as for :func:`result_key`."""
    model = {**files.digests, "format of the model": source.suffix}
    # the report has all details, because a later run may print them
    return result_key(model, form, settings, OptimizeOptions(**{**options, "weigh_each": True}))


@dataclass
class Reuse:
    """The use of the result cache by one run on one model.

    Attributes:
        cache: the cache.
        key: the key of the result; ``None`` if it is neither stored nor reused.
        files: the files of the model, if there is a key.
        reason: the reason why the result is not stored or reused.
        stored: the result of an earlier run, once found.
    """

    cache: ResultCache
    key: Key | None = None
    files: ModelFiles | None = None
    reason: str | None = None
    stored: StoredResult | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        source: Path,
        target: Path | None,
        settings: Settings,
        options: OptimizeOptions,
        *,
        marks: bool,
        obstacle: str | None = None,
    ) -> Reuse:
        """The use of the cache for the model in ``source``.

        Args:
            target: the file for the result; ``None`` if only a report is requested.
            settings: the current settings.
            options: the options that are not settings.
            marks: whether the result is marked as written by graphopt.
            obstacle: a reason not to use the cache.
        """
        reuse = cls(ResultCache(settings))
        try:
            if obstacle is not None:
                raise NotCached(obstacle)
            if target == STDOUT:
                raise NotCached("the result is written to standard output")
            form = "report" if target is None else f"file{target.suffix}{' with mark' if marks else ''}"
            reuse.files = ModelFiles.read(source, settings)
            reuse.key = key_of_file(source, reuse.files, form, settings, options)
        except NotCached as why:
            reuse.reason = str(why)
            trace_bypass(reuse.reason)
        return reuse

    @contextlib.contextmanager
    def found(self, waits: Callable[[], None]) -> Iterator[StoredResult | None]:
        """The stored result; if it is ``None``, the ``with`` block builds it, and other processes wait."""
        if self.key is None:
            yield None
            return
        with self.cache.reserved(self.key, waits) as self.stored:
            yield self.stored

    def store(
        self,
        model: ir.Model | None,
        target: Path | None,
        nbytes: int,
        report: Report,
        warnings: Sequence[tuple[str, str]],
        conversions: Sequence[str],
    ) -> str | None:
        """Store a result; returns a warning if that fails.

        Args:
            model: the result, which was written to ``target``.
            target: its file, if it was written.
            nbytes: the size of the written files in bytes, without data of the original.
            report: its report.
            warnings: the warnings of the run, each with its hint.
            conversions: its warnings about converted inputs.
        """
        key, files = self.key, self.files
        if key is None or files is None:
            return None
        source = files.states[0][0].name
        if target is not None and any(_is_same(target, path) for path, _ in files.states):
            self.reason = "the result replaces the model"
        else:
            self.reason = why_not_stored(key, files, report)
        if self.reason is not None:
            return None

        def fill(folder: Path) -> None:
            write_report(folder, key.parts, report, warnings, source, conversions=conversions)
            if target is not None and model is not None:
                save_entry(model, folder / f"{MODEL}{target.suffix}", files.states[0][0])

        self.reason = self.cache.store(key, nbytes, fill)
        return None if self.reason is None else f"the result is not stored for later runs: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        original = None if self.stored is None else self.stored.data["report"]["seconds"]
        return {
            "hit": self.stored is not None,
            "level": None if self.stored is None else self.stored.level,
            "key": None if self.key is None else self.key.digest,
            "reason": self.reason,
            "original_seconds": original,
        }

    def lines(self, verbose: int) -> Iterator[str]:
        """The lines of the report about the cache."""
        if self.stored is not None:
            where = "" if self.stored.level == "local" else ", from cache-url"
            shown = f"graphopt cache show {self.stored.key[:12]}"
            yield f"  cached    the result of an earlier run{where} ({shown})"
        elif verbose and self.reason is not None:
            yield f"  cache     not used: {self.reason}"
        elif verbose and self.key is not None:
            yield f"  cache     stored as {self.key.digest[:12]}"


def _is_same(path: Path, other: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def deliver(
    stored: StoredResult, source: Path, target: Path, weights: WeightPlacement
) -> Callable[[], list[Path]] | None:
    """A function that writes the model of ``stored`` to ``target``; ``None`` if the entry was removed.

    Args:
        stored: the entry.
        source: the original, whose data the stored model may refer to.
        target: the file for the result.
        weights: the placement of its weights.
    """
    from graphopt.errors import GraphoptError

    try:
        model = stored.model
        if model is None:
            return None
        # an entry stores weights like the original, and a model contains the name of its data file
        if stored.has_data_file or refers_to_original(model) or weights == "beside":
            from graphopt import ir

            loaded = load_entry(model, source)
            return lambda: ir.save(loaded, target, weights=weights)
        content = model.read_bytes()
    except (OSError, GraphoptError):
        return None

    def write() -> list[Path]:
        publish.write(target, content)
        return [target]

    return write
