"""Results, messages and errors as text on terminals, or as JSON.

- ``command_output.py``: the result of a command, as text or as JSON.
- ``console.py``: results on stdout, messages and progress on stderr.
- ``fit_to_width.py``: text and tables within the width of a terminal.
- ``pager.py``: long output through ``$PAGER``.
- ``error_messages.py``: an error as one line, a hint and an exit status.
"""
