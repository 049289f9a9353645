"""graphopt cache: list, explain, check and remove the entries of the store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError, unknown
from graphopt.result_cache.explanation import Difference, nearest
from graphopt.result_cache.local_level import KIND
from graphopt.result_cache.stored_result import StoredResult
from graphopt.util.disk_store import Entry, Store
from graphopt.util.text_tables import Block, Table, beginning, counted, human_bytes, human_seconds

EXAMPLE = """
graphopt cache ls
graphopt cache show 1f0c8a
graphopt cache explain model.onnx -O3
graphopt cache verify
graphopt cache clear
graphopt cache clear 1f0c8a
"""

_ACTIONS = ("ls", "show", "explain", "verify", "clear")
#: Digits of keys and characters of values that tables show.
_DIGITS, _CHARACTERS = 12, 48


@command_decorator.command("cache", example=EXAMPLE, everyday="-O --exact --fuser --dim", has_details=False)
@click.argument("action", metavar="|".join(_ACTIONS))
@click.argument("subject", required=False, metavar="[KEY|KIND|MODEL]")
@shared_options.result_options
def command(run: Run, action: str, subject: str | None) -> Output:
    """List, explain, check or remove stored results.

    ls [KIND] lists the entries of the store: results of graphopt optimize, kernels, tunings and measured
    costs.
    show KEY describes an entry; the first digits of its key are sufficient.
    explain MODEL compares the key of graphopt optimize MODEL, with the options given, with the nearest stored
    key, and names the parts that differ.
    verify compares all entries with their checksums, and removes the damaged ones; exit status 1 if there are
    any.
    clear removes all results, clear KIND the entries of a kind, clear KEY one entry, and clear all
    everything.
    """
    if action not in _ACTIONS:
        raise unknown("action", action, _ACTIONS, f"known are {', '.join(_ACTIONS)}")
    if subject is None and action in ("show", "explain"):
        raise UsageError(f"{action} needs {'a key' if action == 'show' else 'a model'}")
    if subject is not None and action == "verify":
        raise UsageError("verify checks all entries", hint="graphopt cache verify")
    store = Store(run.settings.cache_dir)
    if action == "ls":
        return _list(store, subject)
    if action == "show":
        return _show(store, _entry(store, subject or ""))
    if action == "explain":
        return _explain(run, store, Path(subject or ""))
    return _verify(store) if action == "verify" else _clear(store, subject)


def _entry(store: Store, digits: str) -> Entry:
    """The entry whose key begins with ``digits``.

    Raises:
        UsageError: there is none, or several.
    """
    entries = [entry for entry in store.entries() if entry.key.startswith(digits)]
    if not entries or not digits:
        raise UsageError(f"no entry has the key {digits!r}", hint="graphopt cache ls lists the keys")
    if len(entries) > 1:
        raise UsageError(f"{counted(len(entries), 'key')} begin with {digits!r}", hint="write more digits")
    return entries[0]


def _result(store: Store, entry: Entry) -> StoredResult | None:
    return StoredResult(entry.key, store.path_of(KIND, entry.key)) if entry.kind == KIND else None


# ls and show --------------------------------------------------------------------------------


def _list(store: Store, kind: str | None) -> Output:
    entries = sorted(store.entries(), key=lambda entry: (entry.kind, -entry.modified, entry.key))
    kinds = list(dict.fromkeys(entry.kind for entry in entries))
    if kind is not None and kind not in (*kinds, KIND):
        raise unknown("kind of entries", kind, kinds, "graphopt cache ls lists all")
    rows = [(entry, _contents(store, entry)) for entry in entries if kind in (None, entry.kind)]
    table, now = Table(["kind", "key", "size", "age", "contents"], "<<>><"), time.time()
    for entry, contents in rows:
        age = human_seconds(max(0.0, now - entry.modified))
        table.add(entry.kind, entry.key[:_DIGITS], human_bytes(entry.bytes), age, contents)
    total = f"{counted(len(rows), 'entry', 'entries')}, {human_bytes(sum(entry.bytes for entry, _ in rows))}"
    summary = f"  {total} in {store.root}"
    data = {
        "folder": str(store.root),
        "entries": [{**vars(entry), "contents": contents} for entry, contents in rows],
    }
    return Output(data, [table, summary] if rows else [summary])


def _contents(store: Store, entry: Entry) -> str:
    """A few words about an entry."""
    result = _result(store, entry)
    if result is None:
        return ""
    try:
        pipeline = json.loads(result.parts["option pipeline"])
        return ", ".join((result.data["source"], str(pipeline), result.parts["form"]))
    except (OSError, ValueError, KeyError):
        return "damaged"


def _show(store: Store, entry: Entry) -> Output:
    path, result = store.path_of(entry.kind, entry.key), _result(store, entry)
    data: dict[str, Any] = {
        **vars(entry),
        "path": str(path),
        "intact": store.is_intact(entry.kind, entry.key),
    }
    if result is not None and data["intact"]:
        data |= {"parts": result.parts, "source": result.data["source"], "report": result.data["report"]}
    return Output(data, _details(data, result))


def _details(data: dict[str, Any], result: StoredResult | None) -> Iterator[Block]:
    table = Table(["", ""], "<<")
    for name in ("kind", "key", "path", "source"):
        if name in data:
            table.add(name, data[name])
    table.add("size", human_bytes(data["bytes"]))
    table.add("intact", "yes" if data["intact"] else "no: it counts as missing")
    yield table
    if result is None or "parts" not in data:
        return
    yield ""
    parts = Table(["part of the key", "value"], "<<")
    for name, value in result.parts.items():
        parts.add(name, _shown(value))
    yield parts
    yield ""
    yield from result.report({}).blocks()


# explain ------------------------------------------------------------------------------------


def _explain(run: Run, store: Store, model: Path) -> Output:
    from graphopt import ir
    from graphopt.cli.files.reused_results import key_of_file
    from graphopt.result_cache.model_files import ModelFiles
    from graphopt.result_cache.not_cached import NotCached

    ir.check_is_model(model)
    try:
        key = key_of_file(model, ModelFiles.read(model, run.settings), "", run.settings, run.options)
    except NotCached as why:
        return Output({"model": str(model), "reason": str(why)}, [f"  not stored: {why}"])
    entries = sorted(store.entries(KIND), key=lambda entry: (-entry.modified, entry.key))
    results = [StoredResult(entry.key, store.path_of(KIND, entry.key)) for entry in entries]
    found = nearest(key.parts, results)
    if found is None:
        return Output({"model": str(model), "nearest": None}, ["  no results are stored"])
    result, pairs = found
    data = {"model": str(model), "nearest": result.key, "differences": [pair._asdict() for pair in pairs]}
    return Output(data, _explanation(result, pairs))


def _explanation(result: StoredResult, pairs: list[Difference]) -> Iterator[Block]:
    name = f"{result.key[:_DIGITS]} ({result.parts['form']})"
    if not pairs:
        yield f"  stored as {name}"
        return
    yield f"  the nearest key is {name}, which differs in {counted(len(pairs), 'part')}:"
    table = Table(["part", "now", "stored"], "<<<")
    for pair in pairs:
        table.add(pair.part, _shown(pair.here), _shown(pair.there))
    yield table


def _shown(value: str | None) -> str:
    return "none" if value is None else beginning(value, _CHARACTERS)


# verify and clear ---------------------------------------------------------------------------


def _verify(store: Store) -> Output:
    entries = list(store.entries())
    damaged = [entry for entry in entries if _is_damaged(store, entry)]
    for entry in damaged:
        _remove(store, entry)
    text = [f"  removed {entry.kind} {entry.key[:_DIGITS]}: damaged" for entry in damaged]
    text.append(f"  {counted(len(entries) - len(damaged), 'intact entry', 'intact entries')} in {store.root}")
    status = ExitStatus.VERIFICATION_FAILED if damaged else ExitStatus.OK
    data = {"entries": len(entries), "damaged": [vars(entry) for entry in damaged]}
    return Output(data, text, status=status)


def _is_damaged(store: Store, entry: Entry) -> bool:
    """Whether an entry still exists, and its contents do not match its checksums."""
    return not store.is_intact(entry.kind, entry.key) and store.path_of(entry.kind, entry.key).exists()


def _clear(store: Store, subject: str | None) -> Output:
    """Remove the entries that ``subject`` names: a kind, a key or ``all``; by default, all results."""
    entries = list(store.entries())
    kinds = {entry.kind for entry in entries} | {KIND}
    wanted = subject or KIND
    if wanted != "all":
        chosen = [entry for entry in entries if entry.kind == wanted]
        entries = chosen if wanted in kinds else [_entry(store, wanted)]
    for entry in entries:
        _remove(store, entry)
    total = human_bytes(sum(entry.bytes for entry in entries))
    data = {"removed": [vars(entry) for entry in entries]}
    return Output(data, [f"  removed {counted(len(entries), 'entry', 'entries')}, {total}"])


def _remove(store: Store, entry: Entry) -> None:
    try:
        store.remove(entry.kind, entry.key)
    except FileNotFoundError:
        pass  # another process removed it
    except OSError as error:
        raise UsageError(f"can't remove {store.path_of(entry.kind, entry.key)}: {error.strerror}") from error
