"""Templates: operators with hand-written schedules, one family per module."""
