"""The page on stable formats states the versions that the code writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphopt.debug import reproducer
from graphopt.diagnostics import events
from graphopt.ir import json as json_ir
from graphopt.profile import profile
from graphopt.specialization.bundle import manifest, names, read_manifest
from graphopt.training import step_plan

PAGE = (Path(__file__).parent.parent / "docs" / "stability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("JSON IR", f"`graphopt`: {json_ir.VERSION} "),
        ("profiles", f"`graphopt_profile`: {profile._VERSION} "),
        ("bundles", f"`{names.MARK}`: {manifest.VERSION} "),
        (
            "bundles",
            f"read versions {', '.join(map(str, read_manifest.PLAN_VERSIONS))} and {manifest.VERSION};",
        ),
        ("checkpoints", f"`version`: {step_plan._VERSION} "),
        ("traces", f"`version`: {events.VERSION} "),
        ("reproducers", f"`format`: {reproducer._FORMAT} "),
    ],
)
def test_versions_of_formats_are_those_of_the_code(name: str, version: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if re.match(rf"\| \[?{name}\b", line)]
    assert version in row
