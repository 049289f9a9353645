"""validate-each: check the model after every pass, and name the pass that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import InvalidModel, VerificationFailed
from graphopt.numerics import Numerics
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord

if TYPE_CHECKING:
    from graphopt.verification.verifier import Verifier


class ValidateEach(PassInstrumentation):
    """Checks the structure after each pass and, with a ``verifier``, the results.

    Args:
        verifier: compares with the original after each pass that changed the model.
        numerics: the class of permitted differences.
    """

    def __init__(self, verifier: Verifier | None = None, numerics: Numerics = Numerics.REASSOCIATES) -> None:
        self._verifier = verifier
        self._numerics = numerics

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Check ``model``.

        Raises:
            VerificationFailed: ``pass_`` broke the model.
        """
        if not record.changes:
            return
        try:
            ir.validate(model)
        except InvalidModel as error:
            raise VerificationFailed(
                f"pass {record.index} ({pass_}) broke the model: {error.message}"
            ) from error
        if self._verifier is None:
            return
        verdict = self._verifier.verify(model, numerics=self._numerics)
        if not verdict.ok:
            rewrites = ", ".join(f"{name} ×{count}" for name, count in record.rewrites.most_common(5))
            hint = f"it made these rewrites: {rewrites}; --stop-after N narrows it down" if rewrites else None
            message = f"pass {record.index} ({pass_}) changed the results: {verdict.summary()}"
            raise VerificationFailed(message, hint=hint)
