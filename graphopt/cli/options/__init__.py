"""Options that commands share.

- ``table_options.py``: options created from the table :data:`graphopt.optimize_options.OPTIONS`.
- ``shared_options.py``: the options by group, and those that are in no table.
- ``resolve_options.py``: the objects that they select: the pipeline, the device, the kernel libraries.
- ``parameter_types.py``: types of values: paths to read or write, counts, sizes and times.
- ``option_relations.py``: options that require or exclude others.
- ``path_conflicts.py``: arguments that name the same file for input and output.
- ``completion_values.py``: values that the shell completes.
"""
