"""The single-file form of a bundle: a zip file with uncompressed members."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphopt import publish
from graphopt.errors import GraphoptError, InvalidModel, UsageError, unwritable
from graphopt.specialization.bundle.names import MANIFEST, bundle_at
from graphopt.specialization.bundle.parse_manifest import is_file_name
from graphopt.specialization.bundle.read_manifest import read_manifest

#: The modification time of all members, the earliest that zip files represent: equal bundles are equal files.
_TIME = (1980, 1, 1, 0, 0, 0)
#: Maximum number of members; a bundle has about as many as it has variants.
_MOST_MEMBERS = 10_000
#: Flag of encrypted members, in the general purpose bit flag.
_ENCRYPTED = 1
#: Block size for copying, in bytes.
_BLOCK = 1 << 20


def write_archive(files: Sequence[Path], target: Path) -> None:
    """Write ``files`` as members of the zip file ``target``, atomically and reproducibly.

    Raises:
        UsageError: the file can't be written.
        ResourceLimit: the disk is full.
    """

    def fill(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for file in files:
                info = zipfile.ZipInfo(file.name, _TIME)
                info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
                info.file_size = file.stat().st_size
                with open(file, "rb") as source, archive.open(info, "w") as member:
                    for block in iter(lambda: source.read(_BLOCK), b""):
                        member.write(block)

    publish.write(target, fill)


def check_replaceable_archive(target: Path) -> None:
    """Check that ``target`` does not exist, or is a zip file with a bundle.

    Raises:
        UsageError: ``target`` is something else.
    """
    if not os.path.lexists(target):
        return
    hint = "choose a new file, or that of an older bundle"
    if target.is_dir():
        raise UsageError(f"can't write a bundle to {target}: it is a folder", hint=hint)
    try:
        if bundle_at(target) is not None:
            with publish.ScratchFolder() as folder:
                extract(target, folder)
                read_manifest(folder)
            return
    except GraphoptError as error:
        raise UsageError(f"{target} is not replaced: {error.message}", hint=hint) from error
    raise UsageError(f"{target} is not replaced: not a bundle", hint=hint)


def extract(path: Path, folder: Path) -> None:
    """Extract the members of the bundle ``path``, a zip file, to the empty ``folder``.

    Members are not compressed: together, they need at most as much space as ``path``.

    Raises:
        UsageError: the file can't be read.
        InvalidModel: the file is damaged; or a member is compressed, encrypted, repeated or a link, or its
            name has a folder.
        ResourceLimit: the disk has no space for the members.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _checked(archive, path)
            for member in members:
                target = folder / member.filename
                try:
                    with open(target, "xb") as file:
                        file.writelines(_blocks(archive, member, path))
                except OSError as error:
                    raise unwritable(target, error) from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InvalidModel(
            f"the bundle {path} is damaged: not a zip file, or truncated ({error})",
            hint="copy it again completely",
        ) from error
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error


def _checked(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """The members of ``archive``, after checks of everything except their contents."""
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise _refusal(path, f"it has {len(members)} members, more than {_MOST_MEMBERS}")
    names: dict[str, None] = {}
    for member in members:
        # the raw name: zipfile cuts names at a NUL
        name = member.orig_filename
        if not is_file_name(name) or name != member.filename:
            raise _refusal(
                path, f"member outside of the bundle: {name!r}", "zip the files without their folder"
            )
        if name in names:
            raise _refusal(path, f"two members are called {name}")
        if member.flag_bits & _ENCRYPTED:
            raise _refusal(path, f"{name} is encrypted", "write it without a password")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise _refusal(path, f"{name} is compressed", "write it without compression: zip -0")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise _refusal(path, f"{name} is a symbolic link", "zip the files themselves")
        names[name] = None
    if MANIFEST not in names:
        raise _refusal(path, f"it has no {MANIFEST}")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise _refusal(path, "its members overlap")
    return members


def _blocks(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Iterator[bytes]:
    """The contents of a member, whose CRC is checked; a faulty member is an InvalidModel that names it."""
    try:
        with archive.open(member) as source:
            while block := source.read(_BLOCK):
                yield block
    except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise _refusal(path, f"{member.filename} can't be read ({error})") from error


def _refusal(path: Path, fault: str, hint: str = "copy it again completely") -> InvalidModel:
    return InvalidModel(f"the bundle {path} is damaged: {fault}", hint=hint)
