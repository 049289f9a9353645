"""Results of ``optimize`` that later runs with the same key reuse (docs/cache.md).

- ``key.py``: the key of a result, from its named parts; ``model_files.py``, ``installed_code.py`` and
  ``machine.py`` compute the parts about files, code and hardware.
- ``stored_result.py``: the contents of an entry: the model, its report, and the parts of its key.
- ``local_level.py``: entries in the store, their eviction, and the lock for building an entry.
- ``remote_level.py``: entries at a URL that machines share.
- ``cache.py``: find a result, or build and store it.
- ``explanation.py``: the differences between two keys; ``fresh_store.py``: an empty store for one run.

A hit imports neither onnxruntime nor the passes.
"""
