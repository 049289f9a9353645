"""The models that ``optimize`` reads and the files that it writes, from the paths on its command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from graphopt.cli.files import sample_model
from graphopt.cli.files.check_output_paths import check_file, check_folder, check_model_file
from graphopt.errors import GraphoptError, UsageError
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.model_suffixes import suffixes
from graphopt.util.text_tables import counted

#: The path of standard output, as in ``-o -``.
STDOUT = Path("-")

#: Inserted before the suffix of a result without a given name: ``model.opt.onnx``.
_OPTIMIZED = ".opt"
#: Key and value of the metadata that marks a result; a marked file may be replaced even if the user does not
#: name it.
_KEY, _MARK = "graphopt:written-by", "graphopt optimize"


@dataclass(frozen=True)
class Plan:
    """The models to read, and the destination of each result.

    Attributes:
        sources: the models.
        targets: a file for each model; :data:`STDOUT` for standard output; ``None`` where nothing is written.
        output: the file or folder of the results as messages name it, if known.
        marks: write a mark into the results, by which later runs recognize them.
        stdin: the temporary copy of standard input, if a model is read from there.
    """

    sources: tuple[Path, ...]
    targets: tuple[Path | None, ...]
    output: str | None = None
    marks: bool = False
    stdin: Path | None = None

    @cached_property
    def names(self) -> tuple[Path, ...]:
        """The path of each model below the deepest folder that contains all of them."""
        return relative_paths(self.sources, self.stdin)

    @property
    def is_dry(self) -> bool:
        """Whether nothing is written."""
        return None in self.targets


def plan_files(
    words: Sequence[Path],
    output: str | None,
    *,
    stdin: Path | None,
    force: bool,
    dry_run: bool,
    note: Callable[[str], None],
) -> Plan:
    """Determine the models to read and the files to write.

    Args:
        words: the paths on the command line: models, folders of models, or a model and its result.
        output: the value of ``-o``.
        stdin: the temporary copy of standard input, if a model is read from there.
        force: replace files that graphopt did not write.
        dry_run: write nothing.
        note: called with a line for the user.

    Raises:
        UsageError: the paths contradict each other, a result can't be written, or it would replace a file
            that graphopt did not write.
    """
    named_by_word = False
    if output is None and len(words) == 2 and _is_result(*words, force=force, dry_run=dry_run):
        words, output, named_by_word = words[:1], str(words[1]), True
    sources = tuple(_models(words, note, keep_results=output is not None))
    if dry_run or (output is None and sources == (sample_model.PATH,)):
        if output is None and stdin not in sources:
            output = ", ".join(str(default_target(source)) for source in sources)
        return Plan(sources, (None,) * len(sources), output, stdin=stdin)
    if output == str(STDOUT):
        _check_stdout(sources)
        return Plan(sources, (STDOUT,), output)
    if output is not None:
        return Plan(
            sources,
            tuple(_output_paths(sources, output, stdin, to_folder=any(map(_is_folder_of_models, words)))),
            output,
            marks=named_by_word,
            stdin=stdin,
        )
    if stdin in sources:
        raise UsageError(
            "a model from standard input has no name to derive that of the result from",
            hint="-o OUT.onnx names it; -o - writes to standard output",
        )
    targets = [default_target(source) for source in sources]
    _check_default(sources, targets, force=force)
    return Plan(sources, tuple(targets), marks=True)


def relative_paths(sources: Sequence[Path], stdin: Path | None = None) -> tuple[Path, ...]:
    """The path of each model below the deepest folder that contains all of them.

    Paths are made absolute without resolving symbolic links.

    Args:
        stdin: the temporary copy of standard input, for which only the name is returned.
    """
    absolute = {source: Path(os.path.abspath(source)) for source in sources if source != stdin}
    common = os.path.commonpath([path.parent for path in absolute.values()]) if absolute else ""
    return tuple(
        absolute[source].relative_to(common) if source in absolute else Path(source.name)
        for source in sources
    )


def default_target(source: Path) -> Path:
    """The file next to ``source`` for its result: ``model.opt.onnx`` for ``model.onnx``."""
    suffix = source.suffix if source.suffix in suffixes() else ".onnx"
    stem = source.name.removesuffix(suffix)
    return source.with_name(f"{stem}{_OPTIMIZED}{suffix}")


def mark_as_optimized(metadata: dict[str, str]) -> None:
    """Record in the metadata of a model that graphopt wrote it."""
    metadata[_KEY] = _MARK


def is_ours(path: Path) -> bool:
    """Whether the model at ``path`` carries the mark of an earlier run."""
    from graphopt import ir

    return (ir.metadata_of(path) or {}).get(_KEY) == _MARK


# Words ------------------------------------------------------------------------------------------


def _is_result(first: Path, second: Path, *, force: bool, dry_run: bool) -> bool:
    """Whether the second of two paths is the destination of the result.

    Raises:
        UsageError: both are models, and it is not clear whether the second may be replaced.
    """
    from graphopt import ir

    if first.is_dir() or second.is_dir():
        return False
    if not first.exists():  # loading the missing file is an error, before any file is written
        return True
    if not second.exists() or not second.is_file() or not second.stat().st_size:
        return True
    if not force and (
        not is_ours(second) or (_is_named_as_result(first) and second != default_target(first))
    ):
        if dry_run:
            return False
        hint = f"-o {second} replaces it; -o FOLDER/ optimizes several models"
        if ir.metadata_of(second) is None:
            raise UsageError(f"{second} exists, and is not a model", hint=hint)
        raise UsageError(f"two models: did you mean -o {second}?", hint=hint)
    return True


def _models(words: Sequence[Path], note: Callable[[str], None], *, keep_results: bool) -> Iterator[Path]:
    """The models in ``words``, with folders expanded; skips results in folders and, by default, in lists."""
    found: list[Path] = []
    skipped: list[Path] = []
    for word in words:
        in_folder = _models_in(word) if _is_folder_of_models(word) else None
        for path in [word] if in_folder is None else in_folder:
            is_asked = in_folder is None and (keep_results or len(words) == 1)
            (found if is_asked or not _is_named_as_result(path) else skipped).append(path)
    if not found:
        raise UsageError(
            f"nothing to optimize: {counted(len(skipped), 'model')} named *{_OPTIMIZED}.onnx",
            hint="name one, or give a folder with -o, to optimize results again",
        )
    if skipped:
        note(f"  skipped   {', '.join(map(str, skipped))}: results of graphopt optimize, by their names")
    yield from found


def _is_named_as_result(path: Path) -> bool:
    return path.with_suffix("").suffix == _OPTIMIZED


def _is_folder_of_models(path: Path) -> bool:
    return path.is_dir() and not _is_bundle(path)


def _is_bundle(path: Path) -> bool:
    if not path.is_dir():
        return False
    from graphopt import api

    return api.is_bundle(path)


def _models_in(folder: Path) -> list[Path]:
    """The ``.onnx`` files in ``folder``.

    Raises:
        UsageError: the folder has none.
    """
    from graphopt import ir

    found = sorted(path for path in folder.glob("*.onnx") if path.is_file())
    if not found:
        raise UsageError(f"there is no .onnx file in the folder {folder}", hint=ir.folder_hint(folder))
    return found


# Results ----------------------------------------------------------------------------------------


def _check_stdout(sources: Sequence[Path]) -> None:
    if len(sources) > 1:
        raise UsageError(
            f"{counted(len(sources), 'model')} can't be written to standard output", hint="-o FOLDER/"
        )


def _check_default(sources: Sequence[Path], targets: Sequence[Path], *, force: bool) -> None:
    """Check that results without a given name can be written.

    Raises:
        UsageError: a result can't be written, or would overwrite a file without the mark of an earlier run.
    """
    _check_distinct(targets)
    for source, target in zip(sources, targets, strict=True):
        try:
            if source.exists():  # a missing model is reported when it is loaded
                check_file(target)
        except GraphoptError as error:
            raise UsageError(error.message, hint="-o FILE writes elsewhere") from error
        if not force and target.is_file() and target.stat().st_size and not is_ours(target):
            raise UsageError(
                f"{target} exists, without the mark of a result that graphopt optimize wrote without -o",
                hint="--force replaces it; -o FILE writes elsewhere",
            )


def _output_paths(sources: Sequence[Path], output: str, stdin: Path | None, *, to_folder: bool) -> list[Path]:
    """The files that ``-o`` names: in a folder, models keep their relative paths.

    Args:
        stdin: the temporary copy of standard input, if a model is read from there.
        to_folder: whether a folder was read; a name without the suffix of a model then also denotes a folder.

    Raises:
        UsageError: the files can't be written, one file is named for several models, or a result would
            replace another model of the list.
    """
    path = Path(output)
    if _is_bundle(path):
        raise UsageError(f"{path} is a bundle", hint="--profile FILE.json --emit bundle replaces it")
    is_folder = path.is_dir() or output.endswith("/") or (to_folder and path.suffix not in suffixes())
    if len(sources) == 1 and not is_folder:
        check_model_file(path, *(source for source in sources if source.suffix))
        return [path]
    if path.suffix in suffixes() and not path.exists() and not output.endswith("/"):
        raise UsageError(
            f"{counted(len(sources), 'model')} can't go into the file {path}",
            hint=f"name a folder, or write {path}/ if that is to be one",
        )
    targets = [path / name for name in relative_paths(sources, stdin)]
    _check_distinct(targets)
    _check_replaced(sources, targets)
    check_folder(path)
    for target in targets:
        if target.parent.is_dir():
            check_file(target)
        else:
            check_folder(target.parent)
    return targets


def _check_distinct(targets: Sequence[Path]) -> None:
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise UsageError(f"two of the models would be written to {twice}", hint="name each model once")


def _check_replaced(sources: Sequence[Path], targets: Sequence[Path]) -> None:
    """Check that no result replaces another model of the list; a model may be replaced by its own result.

    Raises:
        UsageError: a result would replace another model.
    """
    written = {os.path.realpath(target): source for source, target in zip(sources, targets, strict=True)}
    for source in sources:
        if (other := written.get(os.path.realpath(source), source)) != source:
            raise UsageError(
                f"the result of {other} would replace {source}, which is also to be optimized",
                hint="-o FOLDER writes to another folder",
            )
