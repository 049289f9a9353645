"""An empty store for one run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from graphopt import config, publish
from graphopt.errors import GraphoptError
from graphopt.util.disk_store import COSTS, Store


@contextlib.contextmanager
def fresh_store(settings: config.Settings) -> Iterator[config.Settings]:
    """``settings`` with an empty store, in a folder that is removed after the ``with`` block.

    The folder is in the store of ``settings``, or among the temporary files of the system if that can't be
    written. It contains the measured costs, and has no remote level.
    """
    old = Store(settings.cache_dir)
    try:
        old.root.mkdir(parents=True, exist_ok=True)
        scratch = publish.ScratchFolder(old.root, "fresh")
    except (GraphoptError, OSError):
        scratch = publish.ScratchFolder()
    with scratch as folder:
        new = Store(folder)
        for entry in old.entries(COSTS):
            if (data := old.get(COSTS, entry.key)) is not None:
                new.put(COSTS, data, entry.key)
        changed = replace(settings, cache_dir=folder, cache_url="")
        with config.using(changed):
            yield changed
