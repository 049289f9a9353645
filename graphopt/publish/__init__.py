"""Publish files atomically, with concurrent writers and despite ``kill -9``.

Everything is written to a temporary file next to its target, and renamed in one step. A temporary
belongs to the process that locks it, so that the next writer recognizes and removes temporaries of killed
processes. A power failure is not covered: files are not synced to disk.
"""

from graphopt.publish.atomic_rename import rename_to_new
from graphopt.publish.files import check_protected, is_protected, staged, write
from graphopt.publish.folders import (
    ScratchFolder,
    check_not_current,
    check_replaceable,
    nearest_existing,
    put_folder,
    remove_abandoned_scratch,
    writing_folder,
)
from graphopt.publish.interrupts import deferred_interrupts
from graphopt.publish.locks import locked
from graphopt.publish.temporary_folders import SUFFIX, note_unfinished, take_unfinished, temporary_file

__all__ = [
    "SUFFIX",
    "ScratchFolder",
    "check_not_current",
    "check_protected",
    "check_replaceable",
    "deferred_interrupts",
    "is_protected",
    "locked",
    "nearest_existing",
    "note_unfinished",
    "put_folder",
    "remove_abandoned_scratch",
    "rename_to_new",
    "staged",
    "take_unfinished",
    "temporary_file",
    "write",
    "writing_folder",
]
