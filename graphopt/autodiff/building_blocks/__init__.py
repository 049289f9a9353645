"""Building blocks that several gradient rules share."""
