"""The optimization of one model by ``graphopt optimize``: reuse or computation, and the written files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from graphopt import publish
from graphopt.cli.files import optimize_files
from graphopt.cli.files.write_result import write_result
from graphopt.cli.invocation import Run
from graphopt.errors import UsageError
from graphopt.optimize_options import OptimizeOptions
from graphopt.util.conversion_warnings import conversions_recorded, warn_converted
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted, human_bytes

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.api import Report
    from graphopt.cli.files.reused_results import Reuse
    from graphopt.cli.output.console import Advance
    from graphopt.compiler import Compiler
    from graphopt.compiler.optimization import Result
    from graphopt.compiler.page_source import PageRecorder
    from graphopt.result_cache.stored_result import StoredReport, StoredResult
    from graphopt.specialization.build_variants import Specialization


@dataclass(frozen=True)
class Job:
    """The optimization of each of the models.

    Attributes:
        run: the context of the command.
        extra: options derived from several command-line options.
        request: the profile for variants, if any.
        bundle: whether a bundle is written.
        dump_dir: the folder for the model after each pass.
        html: the file of the report page.
        reports: the report, by result, of each model whose files are being written or are written.
    """

    run: Run
    extra: OptimizeOptions
    request: Specialization | None
    bundle: bool
    dump_dir: Path | None
    html: Path | None = None
    reports: dict[Path, tuple[Report | StoredReport, Reuse | None]] = field(default_factory=dict)

    def optimize(
        self, source: Path, target: Path | None, planned: optimize_files.Plan
    ) -> tuple[Report | StoredReport, Reuse | None]:
        """Optimize one of the ``planned`` models and write it, unless ``target`` is ``None``."""
        run, begin = self.run, time.perf_counter()
        marks, several = planned.marks, len(planned.sources) > 1
        name = run.invocation.name_of(source)
        relative = planned.names[planned.sources.index(source)]
        with run.console.progress(str(relative) if name == str(source) else name) as advance:
            advance(None, "loading")
            reuse = self._reuse(source, target, marks=marks)

            def waits() -> None:
                advance(None, "waiting for another process")

            with nullcontext() if reuse is None else reuse.found(waits) as stored:
                shown = f"  {source} → {target}" if marks and not several else None
                about = f"{name}: " if several else ""
                found: Report | StoredReport | None = None
                if stored is not None:
                    found = self._reused(stored, source, target, shown, about, reuse)
                if found is None:
                    if reuse is not None:
                        reuse.stored = None
                    folder = relative.with_suffix("") if several else None
                    found = self._built(source, target, reuse, advance, shown, about, folder, marks=marks)
        for warning in () if reuse is None else reuse.cache.warnings:
            run.console.warn(f"{about}{warning}")
        spent = time.perf_counter() - begin if several else run.invocation.seconds
        return found.having(seconds={"all": spent}), reuse

    def _reuse(self, source: Path, target: Path | None, *, marks: bool) -> Reuse | None:
        """The use of the result cache, unless it is switched off."""
        if not self.run.settings.cache:
            return None
        from graphopt.cli.files import reused_results

        obstacle = None
        if self.request is not None:
            obstacle = "variants for a profile are not stored"
        else:
            given = {"--save-repro": self.run.save_repro, "--dump-dir": self.dump_dir, "--html": self.html}
            named = [name for name, path in given.items() if path is not None]
            obstacle = f"the option {named[0]} is given" if named else None
        options = OptimizeOptions(**{**self.run.options, **self.extra})
        return reused_results.Reuse.of(
            source, target, self.run.settings, options, marks=marks, obstacle=obstacle
        )

    def _recorder(self) -> PageRecorder:
        from graphopt.compiler.page_source import PageRecorder

        return PageRecorder()

    def _html(
        self, page: PageRecorder, compiler: Compiler, source: Path, target: Path | None, result: Result
    ) -> bytes:
        """The report page of ``result``."""
        from graphopt.page.render import page_of

        invocation = self.run.invocation
        labels = invocation.name_of(source), "result" if target is None else str(target)
        return page_of(page.source(compiler, compiler.load(source), result, labels, invocation.command))

    def _reused(
        self,
        stored: StoredResult,
        source: Path,
        target: Path | None,
        shown: str | None,
        about: str,
        reuse: Reuse | None,
    ) -> StoredReport | None:
        """Write a stored result; ``None`` if another process has removed it in the meantime."""
        from graphopt.cli.files import reused_results

        run, begin = self.run, time.perf_counter()
        try:
            report, conversions = stored.report({}), stored.conversions
        except (OSError, ValueError, KeyError, TypeError):
            return None
        remarks: list[str] = []
        if target is not None:
            self.reports[target] = report, reuse
            write = reused_results.deliver(stored, source, target, run.settings.weights)
            if write is None:
                return None
            if shown is not None:
                run.console.note(shown)
            _, remarks, _ = _write(run, target, (), write)
        warn_converted(*conversions)
        for text, hint in report.warnings:
            run.console.warn(f"{about}{text}", hint)
        return report.having(remarks=remarks, seconds={"save": time.perf_counter() - begin})

    def _built(
        self,
        source: Path,
        target: Path | None,
        reuse: Reuse | None,
        advance: Advance,
        shown: str | None,
        about: str,
        folder: Path | None,
        *,
        marks: bool,
    ) -> Report:
        """Optimize a model, write the result, and store it for later runs.

        ``folder`` is the model's folder in the folders of ``--save-repro`` and ``--dump-dir``.
        """
        from graphopt import ir
        from graphopt.cli.files.check_output_paths import check_representable, check_weights
        from graphopt.cli.option_groups.instruments import Progress, instruments
        from graphopt.compiler.optimization import Result

        run, request = self.run, self.request
        more = OptimizeOptions(cache=False)  # the command itself uses the cache
        if run.save_repro is not None:
            more["save_repro"] = run.save_repro / (folder or "")
        if target is not None:
            check_representable(source, target)
            check_weights(source, target, run.settings.weights)
        page = None if self.html is None else self._recorder()
        more["instruments"] = [
            *instruments(None if self.dump_dir is None else self.dump_dir / (folder or "")),
            *(() if page is None else page.instruments),
            Progress(advance),
        ]
        compiler = run.compiler.having({**self.extra, **more})
        with conversions_recorded() as conversions:
            result = (
                compiler.optimize(source)
                if request is None
                else compiler.specialize(source, request, bundle=self.bundle)
            )
        report = result.report
        if shown is not None:
            run.console.note(shown)
        if result.model is not None:
            _check_guards(result.model, report)
            if marks:
                optimize_files.mark_as_optimized(result.model.metadata_props)
        advance(None, "writing")
        begin = time.perf_counter()
        # before the result, which may replace the original
        html = b""
        if page is not None and isinstance(result, Result):  # not with a profile, which --html excludes
            html = self._html(page, compiler, source, target, result)
        new_bytes: int | None = None
        remarks: list[str] = []
        kept: dict[str, int] = {}
        if target == optimize_files.STDOUT:
            assert result.model is not None
            new_bytes = _write_to(run.console.stdout.buffer, result.model)
        elif target is not None:
            self.reports[target] = report, reuse
            write = partial(write_result, result, target, request)
            new_bytes, remarks, kept = _write(run, target, report.libraries, write)
        if self.html is not None:
            publish.write(self.html, html)
            remarks.append(f"wrote {self.html}, {human_bytes(len(html))}")
        seconds = time.perf_counter() - begin
        warnings = warnings_of(report, has_profile=request is not None)
        for text, hint in warnings:
            run.console.warn(f"{about}{text}", hint)
        report = report.having(
            file_bytes=(report.file_bytes[0], new_bytes),
            other_form=target is not None and ir.codec_of(source) is not ir.codec_of(target),
        )
        if target is not None:
            self.reports[target] = report, reuse  # the report has the size of the file
        if reuse is not None:
            own = (new_bytes or 0) - sum(kept.values())
            failure = reuse.store(result.model, target, own, report, warnings, conversions)
            if failure is not None:
                run.console.warn(f"{about}{failure}")
        return report.having(remarks=remarks, seconds={"save": seconds})


def warnings_of(report: Report, *, has_profile: bool) -> list[tuple[str, str]]:
    """The warnings about a result, each with its hint or ``""``."""
    found, verdict = [], report.verdict
    if verdict is not None and verdict.unverifiable is not None:
        from graphopt.verification.verdict import INPUTS_HINT

        hint = INPUTS_HINT + (
            "" if has_profile else "; --profile FILE.json tries the shapes of recorded runs"
        )
        found.append((f"not verified: {verdict.unverifiable}", hint if verdict.lacks_inputs else ""))
    for reason, drops in groupby(report.dropped, lambda drop: drop.reason):
        found.append((f"dropped {', '.join(map(str, drops))}: {reason}", ""))
    return found


def _write(
    run: Run, target: Path, libraries: Sequence[str], write: Callable[[], list[Path]]
) -> tuple[int, list[str], dict[str, int]]:
    """Write a result by ``write``, and its ``libraries``.

    Returns:
        its size in bytes, including weights that stay in data files of the original; remarks; and the bytes
        of these weights by file.
    """
    from graphopt.cli.files.check_output_paths import make_folder
    from graphopt.cli.files.write_kernel_libraries import library_of, remove_stale, writing

    if not target.parent.exists():
        make_folder(target.parent)
    library = library_of(target)
    remarks: list[str] = []
    with writing(libraries, library):
        written = write()
    if not target.is_dir() and not libraries and remove_stale(library):
        remarks.append(f"removed {library}, the kernels of the replaced model")
    size = sum(run.invocation.wrote(written).values())
    kept: dict[str, int] = getattr(written, "kept", {})
    if kept:
        files = ", ".join(kept)
        remarks.append(
            f"{human_bytes(sum(kept.values()))} of weights stay in {files}, which {target.name} needs;"
            f" wrote {human_bytes(size)}"
        )
    return size + sum(kept.values()), remarks, kept


def _write_to(stream: BinaryIO, model: ir.Model) -> int:
    """Write ``model`` to ``stream`` in one piece, external data included; returns its size in bytes."""
    from graphopt import ir

    data = ir.to_bytes(model)
    stream.write(data)
    stream.flush()
    return len(data)


def _check_guards(model: ir.Model, report: Report) -> None:
    """Raise a UsageError, before anything is written, if the result has new guards: no runtime runs them."""
    from graphopt.ops.graphopt_operators import GUARD, GUARD_DOMAIN, guards_of, type_checks_of

    if checks := type_checks_of(model):
        raise UsageError(
            f"the optimized model has {counted(len(checks), 'type check')} left, which no runtime supports",
            hint="let lower-fallbacks follow guard-groups",
        )
    count = len(guards_of(model))
    if count > report.original.ops.get(f"{GUARD_DOMAIN}::{GUARD}", 0):
        raise UsageError(
            f"the optimized model has {counted(count, 'guard')} left, which no runtime supports",
            hint="graphopt dump --pass-by-pass shows such models; leave out insert-guards to write one",
        )
