"""The command line.

- ``main.py``: the console script.
- ``invocation.py``: one call of the command line, and the context of its command.
- ``optimize_job.py``: the optimization of one model by ``graphopt optimize``.
- ``optimize_batch.py``: the optimization of several models, and its summary.
- ``report_file.py``: the file of ``--report``.
- ``framework/``: the decorator of commands, their help, and hints for the commands of other tools.
- ``options/``: options that commands share, types of parameters, and checks of options against each other.
- ``option_groups/``: options of one or two commands, and the functions that these options select.
- ``files/``: files that commands read and write.
- ``output/``: text on terminals: the console, its layout, the pager and error messages.
- ``views/``: results as tables, charts and JSON.
- ``reproducer/``: commands recorded by ``--save-repro``, and their replay.
- ``commands/``: the commands, one file each.
"""
