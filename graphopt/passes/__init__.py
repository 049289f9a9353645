"""The infrastructure of passes: base class, registry, pipelines and their text."""
