"""Record the settings and options that produced models in their metadata."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.recorded_settings.plain_values import DIGEST
from graphopt.recorded_settings.record import KEY, SettingsRecord
from graphopt.util.disk_store import key_of

if TYPE_CHECKING:
    from graphopt.profile import Profile


def record_of(
    env: Environment, function: Callable[..., Any] | None = None, **arguments: Any
) -> SettingsRecord | None:
    """The record of an operation; ``None`` if records are switched off.

    Args:
        env: the settings and options.
        function: the operation; by default ``optimize``.
        arguments: plain values of its own arguments; those that equal the defaults of ``function`` are
            omitted.
    """
    if not env.settings.record_settings:
        return None
    if function is None:
        return SettingsRecord.of(env.settings, env.given)
    defaults = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    changed = {name: value for name, value in arguments.items() if value != defaults.get(name)}
    return SettingsRecord.of(env.settings, env.given, function.__name__, changed)


def digest_of(profile: Profile) -> dict[str, str]:
    """The digest of a profile, which takes its place in records."""
    return {DIGEST: key_of(json.dumps(profile.to_dict(), sort_keys=True))}


def write_record(record: SettingsRecord | None, *models: ir.Model) -> None:
    """Write ``record`` to the metadata of ``models``, replacing an earlier one.

    A record of defaults only is not written, so that the bytes of such models do not change.
    """
    for model in models:
        model.metadata_props.pop(KEY, None)
        if record is not None and not record.is_empty:
            model.metadata_props[KEY] = record.to_json()
