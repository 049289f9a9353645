"""Profiles and guards: profiled shapes and values, variants with their sizes, hits and misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphopt.page.block_html import html_of_blocks
from graphopt.page.section import PageSource, Section
from graphopt.profile import Profile, ValueProfile
from graphopt.specialization.variant_records import read_variants
from graphopt.util.text_tables import Block, Line, Table, counted

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
    """The variants of the report of this run, otherwise those that the last model records."""
    reported = [] if source.report is None else source.report.variants
    table = Table(["variant", "runs", "nodes", "", "where"], "<>><<")
    for one in reported:
        status = one.left_out or f"instead of {one.general:,}"
        table.add(one.variant.name, one.variant.runs, f"{one.nodes:,}", status, one.variant.guard)
    if not reported and source.models:
        for record in read_variants(source.models[-1]):
            table.add(record.name, record.runs, f"{record.nodes:,}", "", record.guard)
    if not table.rows:
        return
    yield Line("Variants", "title")
    yield table
    runs = sum(int(row[1]) for row in table.rows)
    total = source.report.profiled_runs if source.report is not None and reported else 0
    if total:
        hits, misses = counted(runs, "hit"), counted(total - runs, "miss", "misses")
        yield f"guards in the profile: {hits}, {misses}"
