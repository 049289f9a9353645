"""Hints, counters and events of a run, and the files that record the events."""
