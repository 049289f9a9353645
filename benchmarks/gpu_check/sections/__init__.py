"""The sections, one module each."""
