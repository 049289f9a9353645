"""Results of commands as tables, charts and JSON.

- ``optimization.py``: the report of ``optimize``.
- ``bench_results.py`` and ``latency_drawing.py``: the measurements of ``bench``.
- ``profiles.py``: profiles of inputs.
- ``variants.py``: variants in bundles and models.
- ``exit_points.py``: exit points of ``bailout``.
"""
