"""Profiles and guards: profiled shapes and values, variants with their sizes, hits and misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphopt.page.block_html import html_of_blocks
from graphopt.page.section import PageSource, Section
from graphopt.profile import Profile, ValueProfile
from graphopt.specialization.variant_records import VariantRecord, read_variants
from graphopt.util.text_tables import Block, Line, Table, counted, human_bytes

#: Maximum number of rows of each table.
_ROWS = 200


def build(source: PageSource) -> Section | None:
    """The section; ``None`` without a profile, variants and an executor."""
    blocks = [*_profile(source.profile), *_variants(source)]
    if source.executor_state is not None:
        blocks += [Line("Plans of the executor", "title"), *source.executor_state.blocks()]
    if not blocks:
        return None
    patterns = [] if source.profile is None else source.profile.patterns
    data = {"patterns": [[_text_of(pattern.inputs), pattern.count] for pattern in patterns]}
    return Section("profiles", "Profiles and guards", 60, html_of_blocks(blocks), data)


def _text_of(inputs: Mapping[str, ValueProfile]) -> str:
    return ", ".join(f"{name} {observed}" for name, observed in inputs.items())


def _profile(profile: Profile | None) -> Iterator[Block]:
    if profile is None:
        return
    runs = counted(profile.runs, "run")
    watched = counted(profile.watched, "intermediate value")
    yield Line(f"Profile of {runs}, {watched} watched, {profile.left_out:,} left out", "title")
    patterns = Table(["runs", "inputs"], "><")
    for pattern in sorted(profile.patterns, key=lambda pattern: -pattern.count)[:_ROWS]:
        patterns.add(f"{pattern.count:,}", _text_of(pattern.inputs))
    yield patterns
    values = Table(["value", "in all runs"], "<<")
    for name, observed in list(profile.values.items())[:_ROWS]:
        values.add(name, observed)
    if values.rows:
        yield values


def _variants(source: PageSource) -> Iterator[Block]:
    """The variants of the report of this run, otherwise those of the bundle or of the last model."""
    reported = [] if source.report is None else source.report.variants
    if reported:
        table = Table(["variant", "runs", "nodes", "", "where"], "<>><<")
        for one in reported:
            status = one.left_out or f"instead of {one.general:,}"
            table.add(one.variant.name, f"{one.variant.runs:,}", f"{one.nodes:,}", status, one.variant.guard)
        hits = sum(one.variant.runs for one in reported if one.left_out is None)
    else:
        records = _records(source)
        table = Table(["variant", "runs", "nodes", "file", "where"], "<>>><")
        sizes = {} if source.bundle is None else source.bundle.sizes
        for record in records:
            size = human_bytes(sizes[record.file]) if record.file in sizes else ""
            table.add(record.name, f"{record.runs:,}", f"{record.nodes:,}", size, record.guard)
        hits = sum(record.runs for record in records)
    if not table.rows:
        return
    yield Line("Variants", "title")
    yield table
    if source.bundle is not None:
        files = (f"{name} {human_bytes(size)}" for name, size in source.bundle.sizes.items())
        yield f"files of the bundle: {', '.join(files)}"
    total = source.report.profiled_runs if source.report is not None and reported else 0
    total = source.profile.runs if source.profile is not None else total
    if total:
        yield f"guards in the profile: {counted(hits, 'hit')}, {counted(total - hits, 'miss', 'misses')}"


def _records(source: PageSource) -> Sequence[VariantRecord]:
    """The records of variants in the bundle, or in the metadata of the last model."""
    if source.bundle is not None:
        return source.bundle.manifest.variants
    return read_variants(source.models[-1]) if source.models else []
