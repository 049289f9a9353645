"""Groups of options of one or two commands, and the functions that these options select.

- ``failing_check.py``: the check of ``bisect`` and ``reduce``.
- ``compared_models.py``: the models that ``bench`` compares, for ``--against``.
- ``executor_runs.py``: ``run --inputs``.
- ``gradient_split.py``: ``grad --split``.
- ``input_files.py``: ``--inputs`` of ``run`` and ``profile``.
- ``instruments.py``: ``--dump-dir`` and the progress bar.
- ``loss.py``: the loss of ``grad`` and ``train-step``.
- ``specialization.py``: ``--profile`` of ``optimize`` and ``compile``.
- ``tuning.py``: ``--tune`` of ``optimize`` and ``compile``.
"""
