"""Whether a profile speaks of inputs as a model declares them."""

from __future__ import annotations

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.ir.signature import Signature
from graphopt.profile.profile import Profile


def check_profile(profile: Profile, model: ir.Model) -> None:
    """Check that ``profile`` is of ``model`` and tells of its inputs as declared; people may have written it.

    Raises:
        UsageError: it is of another model, names an input that there is not, or tells another type, number of
            dims or size.
    """
    if profile.model != ir.fingerprint(model, names=True):
        raise UsageError("the profile is of another model", hint="graphopt profile makes one of this model")
    ports = {port.name: port for port in Signature.of(model).inputs}
    for pattern in profile.patterns:
        for name, seen in pattern.inputs.items():
            port = ports.get(name)
            if port is None:
                raise unknown("input", name, ports)
            fits = seen.shape is None or port.dims == () or port.takes(seen.shape)  # scalars may be anything
            if seen.type != port.type or not fits:
                raise UsageError(f"the profile says that input {name!r} is {seen}, the model says {port}")
