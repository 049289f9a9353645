"""Write a page: one HTML file, without references to others, under a strict content-security policy.

The policy permits one script and one style sheet, by their hashes, and images from ``data:`` addresses. Names
of a model are data of a JSON element, and text that the template escapes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from graphopt.page.page_data import PageData
from graphopt.page.script_json import script_json
from graphopt.page.section import PageSource, Section, from_template, sections_of

_ASSETS = Path(__file__).parent / "assets"


def page_of(source: PageSource) -> bytes:
    """The page with all sections that ``source`` has contents for.

    Raises:
        UsageError: a package of the extra ``report`` is not installed.
    """
    sections = sections_of(source)
    data = {section.name: section.data for section in sections if section.data is not None}
    return render(
        PageData(source.title, source.command, source.graphs, source.makers, source.stages, data), sections
    )


def render(data: PageData, sections: Sequence[Section]) -> bytes:
    """The page with ``data`` and ``sections`` as UTF-8; the same arguments produce the same bytes.

    Raises:
        UsageError: a package of the extra ``report`` is not installed.
    """
    from markupsafe import Markup

    script, style = _joined("*.js"), _joined("*.css")
    page = from_template(
        (_ASSETS / "page.html.jinja").read_text(encoding="utf-8"),
        policy=_policy(script, style),
        data=Markup(script_json(data.to_dict())),
        page=data,
        script=Markup(script),
        sections=sections,
        style=Markup(style),
    )
    # lone surrogates, which UTF-8 lacks, occur in names from files that are not UTF-8
    return page.encode("utf-8", "backslashreplace")


def _joined(pattern: str) -> str:
    """The files that match ``pattern``, in the order of their names."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(_ASSETS.glob(pattern)))


def _policy(script: str, style: str) -> str:
    """The content-security policy (https://www.w3.org/TR/CSP3/) of a page with these inline texts."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
