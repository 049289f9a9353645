"""The settings and options that produced an artifact, recorded in the artifact itself.

- ``record.py``: the record: its contents, and its canonical JSON.
- ``plain_values.py``: values of options as plain data, and back.
- ``artifacts.py``: the records of models, bundles, folders of models, reports and reproducers.
- ``sources.py``: settings with the sources of their values, from files and artifacts; their differences.
"""

from graphopt.recorded_settings.record import KEY, SettingsRecord

__all__ = ["KEY", "SettingsRecord"]
