"""Reports as plain data, from which they can be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from graphopt.util.plain_data import from_plain, to_plain

if TYPE_CHECKING:
    from graphopt.instrument.report import Report


def report_data(report: Report) -> Any:
    """``report`` as plain data.

    Raises:
        TypeError: the report contains an object that is no data, such as that of tuning.
    """
    return to_plain(report)


def restored_report(data: Any) -> Report:
    """The report of :func:`report_data`.

    Raises:
        ValueError, KeyError, TypeError: ``data`` has another structure.
    """
    from graphopt.cost import Costs, Decision
    from graphopt.instrument.report import Report
    from graphopt.ort.session_options import SessionChoice
    from graphopt.profile import Variant
    from graphopt.rewrite.fused_operators import Fused
    from graphopt.rewrite.missed_fusions import Missed
    from graphopt.verification.verdict import Verdict

    names = {
        kind.__name__: kind for kind in (Costs, Decision, Fused, Missed, SessionChoice, Variant, Verdict)
    }
    return cast("Report", from_plain(Report, data, names))
