"""The reason why a result is neither stored nor reused."""

from __future__ import annotations


class NotCached(Exception):
    """A result has no key, because it depends on more than the parts of keys; the message is the reason."""
