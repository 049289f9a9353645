"""Recorded commands: the folders of ``--save-repro``.

- ``recorded_command.py``: the contents of a folder: the command line and its outcome.
- ``recording.py``: records a running command.
- ``rerun.py``: reruns a recorded command in a separate process.
"""
