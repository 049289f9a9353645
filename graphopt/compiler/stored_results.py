"""Results of ``optimize`` in Python that are stored and reused."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.errors import GraphoptError
from graphopt.instrument.report import Report
from graphopt.model_arguments import ModelLike
from graphopt.result_cache.cache import ResultCache, trace_bypass, why_not_stored
from graphopt.result_cache.entry_models import load_entry, save_entry
from graphopt.result_cache.key import Key, result_key
from graphopt.result_cache.model_files import ModelFiles
from graphopt.result_cache.not_cached import NotCached
from graphopt.result_cache.report_data import report_data, restored_report
from graphopt.result_cache.stored_result import MODEL, StoredResult, write_report
from graphopt.util.conversion_warnings import conversions_recorded, warn_converted

#: The form of results that are models in memory, for their keys.
_FORM = "model in Python"


class _Request(NamedTuple):
    """The key of a result, and the files of the model; ``None`` for a model that is not in files."""

    key: Key
    files: ModelFiles | None

    @property
    def source(self) -> Path | None:
        """The file of the model."""
        return None if self.files is None else self.files.states[0][0]


def stored_or_computed(
    env: Environment, model: ModelLike, compute: Callable[[], tuple[ir.Model, Report]]
) -> tuple[ir.Model, Report]:
    """The optimized model and its report, from the result cache if possible, otherwise by ``compute``.

    A model from the cache equals the computed one after saving and loading.
    """
    request = _request(env, model)
    if request is None:
        return compute()
    cache = ResultCache(env.settings)
    with cache.reserved(request.key) as stored:
        found = None if stored is None else _loaded(stored, request.source)
        if found is None:
            with conversions_recorded() as conversions:
                found = compute()
            _store(cache, request, *found, conversions)
        elif stored is not None:
            warn_converted(*stored.conversions)
    for warning in cache.warnings:
        warnings.warn(warning, RuntimeWarning, stacklevel=2)
    return found


def _request(env: Environment, model: ModelLike) -> _Request | None:
    """The key for ``model``; ``None`` if its result is neither stored nor reused."""
    try:
        if isinstance(model, bytes):
            parts, files = {"model": hashlib.sha256(model).hexdigest()}, None
            form = "bytes"
        elif isinstance(model, str | os.PathLike):
            files = ModelFiles.read(Path(model), env.settings)
            parts, form = files.digests, Path(model).suffix
        else:
            return None
        parts = {**parts, "format of the model": form}
        return _Request(result_key(parts, _FORM, env.settings, env.given), files)
    except NotCached as why:
        trace_bypass(str(why))
        return None


def _loaded(stored: StoredResult, source: Path | None) -> tuple[ir.Model, Report] | None:
    """A stored result; ``None`` if another process has removed its files in the meantime."""
    try:
        report, path = restored_report(stored.data["plain"]), stored.model
        return None if path is None else (load_entry(path, source), report.having(cached=stored.key))
    except (OSError, ValueError, KeyError, TypeError, GraphoptError):
        return None


def _store(
    cache: ResultCache, request: _Request, model: ir.Model, report: Report, conversions: list[str]
) -> None:
    key, files = request
    if why_not_stored(key, files, report) is not None:
        return
    plain = report_data(report)

    def fill(folder: Path) -> None:
        source = "bytes" if files is None else files.states[0][0].name
        write_report(folder, key.parts, report, [], source, plain, conversions)
        save_entry(model, folder / f"{MODEL}.onnx", request.source)

    failure = cache.store(key, report.optimized.weight_bytes, fill)
    if failure is not None:
        cache.warnings.append(f"the result is not stored for later runs: {failure}")
