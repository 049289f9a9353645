"""The framework of commands.

- ``command_decorator.py``: turns a function into a command with the options that all commands share.
- ``help.py``: the short and the long help of a command, and the list of commands.
- ``names_in_other_tools.py``: commands and options of other tools, with their equivalents in graphopt.
"""
